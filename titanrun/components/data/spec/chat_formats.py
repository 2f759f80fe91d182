"""Formats of conversations in files: messages, ShareGPT, Alpaca, prompt and completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from titanrun.config.problems import problem_error

Message = dict[str, Any]
Record = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOKEN_WEIGHT = 1e6
JSON_TYPE_NAMES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
"""Names of JSON types other than text."""
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_response": "tool",
    **{role: role for role in ROLES},
}


@dataclass(frozen=True, slots=True)
class ChatColumns:
    """Columns that a record is read from; each layout uses some of them.

    `weight` is a key of messages.
    """

    messages: str
    prompt: str
    completion: str
    weight: str | None = None


def parse_messages_format(record: Record, columns: ChatColumns, location: str) -> list[Message]:
    """Return a list of messages with `role` and `content`.

    Further keys of a message are passed to the template.
    """
    found = []
    for number, message in enumerate(get_messages(record, columns.messages, location), start=1):
        where = f"{location}, message {number},"
        role, content = (
            get_role(message, "role", ROLES, where),
            get_column_text(message, "content", where),
        )
        found.append(
            {
                **drop_null_keys(message),
                "role": role,
                "content": content,
                **get_message_weight(message, columns, where),
            }
        )
    return found


def parse_sharegpt_format(record: Record, columns: ChatColumns, location: str) -> list[Message]:
    """Convert a list of turns with `from` and `value` to messages."""
    found = []
    for number, turn in enumerate(get_messages(record, columns.messages, location), start=1):
        where = f"{location}, message {number},"
        role = get_role(turn, "from", tuple(SHAREGPT_ROLES), where)
        found.append(
            {
                "role": SHAREGPT_ROLES[role],
                "content": get_column_text(turn, "value", where),
                **get_message_weight(turn, columns, where),
            }
        )
    return found


def parse_alpaca_format(record: Record, columns: ChatColumns, location: str) -> list[Message]:
    """Convert `instruction`, followed by `input` if there is one, and `output` to messages."""
    instruction, output = (
        get_column_text(record, "instruction", location),
        get_column_text(record, "output", location),
    )
    given = get_column_text(record, "input", location) if record.get("input") is not None else ""
    asked = f"{instruction}\n\n{given}" if given else instruction
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]


def parse_prompt_completion_format(
    record: Record, columns: ChatColumns, location: str
) -> list[Message]:
    """Convert a prompt and a completion to messages."""
    prompt = get_column_text(record, columns.prompt, location, field="prompt_column")
    completion = get_column_text(record, columns.completion, location, field="completion_column")
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


CHAT_FORMATS: dict[str, Callable[[Record, ChatColumns, str], list[Message]]] = {
    "messages": parse_messages_format,
    "sharegpt": parse_sharegpt_format,
    "alpaca": parse_alpaca_format,
    "prompt_completion": parse_prompt_completion_format,
}


CHAT_COLUMN_FIELDS = ("layout", "column", "prompt_column", "completion_column")
"""Fields that name a column of a conversation. Preference datasets have no layout."""


def get_column_value(record: Record, column: str, location: str, *, field: str = "layout") -> Any:
    """Return the value in a column, which `field` of the dataset names.

    Raises:
        ProblemsFound: A data problem that lists the existing columns.
    """
    if column not in record:
        known = ", ".join(map(str, record)) or "none"
        close = get_close_matches(column, list(map(str, record)), n=1)
        named = "layout and its columns" if field in CHAT_COLUMN_FIELDS else field
        hint = f"did you mean '{close[0]}'?" if close else f"set {named} to what the files hold"
        raise problem_error(
            "data", f"{location} has no '{column}'; it has: {known}", path=(field,), hint=hint
        )
    return record[column]


def get_column_text(record: Record, column: str, location: str, *, field: str = "layout") -> str:
    """Return the text in a column.

    Half a surrogate pair, which JSON can encode, is a data problem: it is not a character and has
    no token.
    """
    value = get_column_value(record, column, location, field=field)
    if not isinstance(value, str):
        kind = JSON_TYPE_NAMES.get(type(value), type(value).__name__)
        raise problem_error(
            "data",
            f"{location} has {kind} in '{column}', not text",
            path=("path",),
            hint="remove such conversations",
        )
    # U+FDD0 and U+FDD1 are noncharacters too: they mark replies in the output of a template
    bad = next(
        (
            number
            for number, letter in enumerate(value, start=1)
            if "\ud800" <= letter <= "\udfff" or letter in "\ufdd0\ufdd1"
        ),
        None,
    )
    if bad is not None:
        message = f"{location} has an invalid Unicode character in '{column}' at position {bad}"
        raise problem_error(
            "data", message, path=("path",), hint="write the whole character, or remove it"
        )
    return value


def get_messages(record: Record, column: str, location: str) -> list[Message]:
    """Return the messages in a column."""
    value = get_column_value(record, column, location, field="column")
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(entry, dict) for entry in value)
    ):
        message = f"{location} has no list of messages in '{column}'"
        raise problem_error(
            "data", message, path=("path",), hint='write [{"role": "user", "content": "..."}, ...]'
        )
    return value


def get_role(message: Message, key: str, known: tuple[str, ...], location: str) -> str:
    """Return the role of a message."""
    value = get_column_value(message, key, location)
    if value not in known:
        speaker = "null" if value is None else repr(value)
        problem = f"{location} is from {speaker}, which is not a role"
        raise problem_error("data", problem, path=("path",), hint=f"roles are: {', '.join(known)}")
    return str(value)


def get_message_weight(message: Message, columns: ChatColumns, location: str) -> dict[str, float]:
    """Return the loss weight of a message under its key, empty without one.

    Raises:
        ProblemsFound: A data problem for an invalid weight.
    """
    value = None if columns.weight is None else message.get(columns.weight)
    if columns.weight is None or value is None:
        return {}
    if not isinstance(value, int | float) or not 0 <= value <= MAX_TOKEN_WEIGHT:
        problem = f"{location} has {value!r} in '{columns.weight}', which is not a weight"
        raise problem_error(
            "data",
            problem,
            path=("path",),
            hint="write a positive number, or 0 to exclude a message from the loss",
        )
    return {columns.weight: float(value)}


def drop_null_keys(message: Message) -> Message:
    """Return a message without null keys: parquet adds the keys of all messages to each."""
    return {key: value for key, value in message.items() if value is not None}
