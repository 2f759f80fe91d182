"""Formats of conversations in files: messages, ShareGPT, Alpaca, prompt and completion."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from titanrun.components.data.spec.chat_content import (
    REASONING_KEYS,
    Message,
    check_message_characters,
    check_text,
    check_tool_calls,
    parse_content,
    parse_tools,
)
from titanrun.config.problems import ProblemsFound, problem_error

Record = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOKEN_WEIGHT = 1e6
SYSTEM_ROLES = ("system", "developer")
MESSAGE_KEYS = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", *REASONING_KEYS))
"""Keys that templates read."""
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_response": "tool",
    **{role: role for role in ROLES},
}


@dataclass(frozen=True, slots=True)
class ChatColumns:
    """Columns that a record is read from; each layout uses some of them.

    `weight` is a key of messages. Every layout reads `system`, a column of its own.
    """

    messages: str
    prompt: str
    completion: str
    weight: str | None = None
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, with the tools that the assistant may call.

    Args:
        messages: All messages, in order.
        tools: Tools of the record.
        prompt_length: Number of messages at the beginning that are a prompt, in which no reply is
            trained on.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    prompt_length: int = 0

    @property
    def asked(self) -> list[Message]:
        """Messages of the prompt; all where no prompt is told apart."""
        return self.messages[: self.prompt_length or None]


def parse_message(message: Message, location: str, *, field: str = "layout") -> Message:
    """Return a message with `role` and `content`. Further keys are kept for the template.

    Raises:
        ProblemsFound: A data problem if the message is not in the format of OpenAI, about `field`
            of the dataset.
    """
    role = get_role(message, "role", ROLES, location, field=field)
    kept = drop_null_keys(message)
    check_tool_calls(message, location)
    if not message.get("tool_calls"):
        get_column_value(message, "content", location, field=field)
    for name, value in kept.items():
        check_message_characters(value, name, location)
    return {**kept, "role": role, "content": parse_content(message, "content", location)}


def parse_messages_format(record: Record, columns: ChatColumns, location: str) -> Conversation:
    """Return a list of messages with `role` and `content`, and the record's tools.

    Further keys of a message are passed to the template.
    """
    found = []
    for number, message in enumerate(get_messages(record, columns.messages, location), start=1):
        where = f"{location}, message {number},"
        found.append(
            {**parse_message(message, where), **get_message_weight(message, columns.weight, where)}
        )
    return Conversation(found, parse_tools(record, location))


def parse_sharegpt_format(record: Record, columns: ChatColumns, location: str) -> Conversation:
    """Convert a list of turns with `from` and `value` to messages."""
    found = []
    for number, turn in enumerate(get_messages(record, columns.messages, location), start=1):
        where = f"{location}, message {number},"
        found.append({**parse_turn(turn, where), **get_message_weight(turn, columns.weight, where)})
    return Conversation(found, parse_tools(record, location))


def parse_turn(turn: Message, location: str, *, field: str = "layout") -> Message:
    """Return the message of a turn with `from` and `value`.

    Raises:
        ProblemsFound: A data problem if the turn has neither, about `field` of the dataset.
    """
    role = get_role(turn, "from", tuple(SHAREGPT_ROLES), location, field=field)
    text = get_column_text(turn, "value", location, field=field)
    return {"role": SHAREGPT_ROLES[role], "content": text}


def parse_alpaca_format(record: Record, columns: ChatColumns, location: str) -> Conversation:
    """Convert `instruction`, followed by `input` if there is one, and `output` to messages."""
    instruction, output = (
        get_column_text(record, "instruction", location),
        get_column_text(record, "output", location),
    )
    given = get_column_text(record, "input", location) if record.get("input") is not None else ""
    asked = f"{instruction}\n\n{given}" if given else instruction
    return Conversation(
        [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]
    )


def parse_prompt_completion_format(
    record: Record, columns: ChatColumns, location: str
) -> Conversation:
    """Convert a prompt and a completion to messages; each is a text or a list of messages."""
    field, weight = "completion_column", columns.weight
    asked = get_prompt_messages(record, columns.prompt, location, weight=weight)
    reply = get_reply_messages(record, columns.completion, field, location, weight=weight)
    check_ends_with_reply(reply, location)
    return Conversation([*asked, *reply], parse_tools(record, location), len(asked))


CHAT_FORMATS: dict[str, Callable[[Record, ChatColumns, str], Conversation]] = {
    "messages": parse_messages_format,
    "sharegpt": parse_sharegpt_format,
    "alpaca": parse_alpaca_format,
    "prompt_completion": parse_prompt_completion_format,
}


def parse_conversation(
    layout: str, record: Record, columns: ChatColumns, location: str
) -> Conversation:
    """Return the conversation of a record, after the system text in a column of its own.

    Raises:
        ProblemsFound: A data problem if the record does not match the layout, or if it has both a
            system text and a system message.
    """
    found = CHAT_FORMATS[layout](record, columns, location)
    if columns.system is None or columns.system not in record:
        return found
    system = get_system_messages(record, columns.system, location)
    if system and has_system_message(found.messages):
        raise problem_error(
            "data",
            f"{location} has a system text in '{columns.system}', and a system message",
            path=("system_column",),
            hint="remove one of them from the record, or remove system_column",
        )
    length = found.prompt_length and len(system) + found.prompt_length
    return Conversation([*system, *found.messages], found.tools, length)


def has_system_message(messages: Sequence[Message]) -> bool:
    """Return whether some message is of the system or the developer."""
    return any(message["role"] in SYSTEM_ROLES for message in messages)


def get_system_messages(record: Record, column: str, location: str) -> list[Message]:
    """Return the message of the system text in a column, none if it is null or empty."""
    field = "system_column"
    if get_column_value(record, column, location, field=field) in (None, ""):
        return []
    return [{"role": "system", "content": get_column_text(record, column, location, field=field)}]


LAYOUT_FIELDS = ("layout", "column")
"""Fields that decide together where conversations are. Datasets of replies have neither."""


def get_column_value(record: Record, column: str, location: str, *, field: str = "layout") -> Any:
    """Return the value in a column, which `field` of the dataset names.

    Raises:
        ProblemsFound: A data problem that lists the existing columns.
    """
    if column not in record:
        known = ", ".join(map(str, record)) or "none"
        # a text is no list of messages
        fitting = (
            name for name in record if field != "column" or not isinstance(record[name], str)
        )
        close = get_close_matches(column, list(map(str, fitting)), n=1)
        named = "layout and its columns" if field in LAYOUT_FIELDS else field
        hint = f"did you mean '{close[0]}'?" if close else f"set {named} to match the files"
        raise problem_error(
            "data", f"{location} has no '{column}'; it has: {known}", path=(field,), hint=hint
        )
    return record[column]


def check_ends_with_reply(messages: list[Message], location: str) -> None:
    """Raise ProblemsFound if the last message is not the assistant's."""
    if messages[-1]["role"] != "assistant":
        raise problem_error(
            "data",
            f"{location} does not end with an assistant message",
            path=("path",),
            hint="remove such records",
        )


def get_prompt_messages(
    record: Record, column: str, location: str, *, weight: str | None = None
) -> list[Message]:
    """Return the messages in a column of a prompt; a text becomes a message of the user."""
    field = "prompt_column"
    if isinstance(get_column_value(record, column, location, field=field), list):
        return get_column_messages(record, column, field, location, weight=weight)
    text = get_column_text(record, column, location, field=field)
    return [{"role": "user", "content": text}]


def get_reply_messages(
    record: Record, column: str, field: str, location: str, *, weight: str | None = None
) -> list[Message]:
    """Return the messages in a column of a reply; a text becomes an assistant message.

    A single message may stand without a list around it.
    """
    value = get_column_value(record, column, location, field=field)
    if isinstance(value, list):
        return get_column_messages(record, column, field, location, weight=weight)
    if isinstance(value, dict):
        return get_column_messages({column: [value]}, column, field, location, weight=weight)
    text = get_column_text(record, column, location, field=field)
    return [{"role": "assistant", "content": text}]


def get_column_messages(
    record: Record, column: str, field: str, location: str, *, weight: str | None = None
) -> list[Message]:
    """Return a list of messages with the keys that templates read, also of turns of ShareGPT.

    Others, such as scores, differ between equal messages. `weight` is the key of their weights.
    """
    found = []
    for number, message in enumerate(get_messages(record, column, location, field=field), start=1):
        where = f"{location}, '{column}' message {number},"
        parse = parse_turn if is_sharegpt_turn(message) else parse_message
        parsed = parse(message, where, field=field)
        kept = {key: value for key, value in parsed.items() if key in MESSAGE_KEYS}
        found.append({**kept, **get_message_weight(message, weight, where)})
    return found


def is_sharegpt_turn(message: Message) -> bool:
    """Return whether a message names its speaker under `from`, and has no role.

    Parquet adds the keys of all messages to each, as null.
    """
    return message.get("role") is None and message.get("from") is not None


def get_column_text(record: Record, column: str, location: str, *, field: str = "layout") -> str:
    """Return the text in a column. Raise a data problem if it has invalid characters."""
    value = get_column_value(record, column, location, field=field)
    check_text(value, column, location)
    return str(value)


def get_messages(
    record: Record, column: str, location: str, *, field: str = "column"
) -> list[Message]:
    """Return the messages in a column, which `field` of the dataset names."""
    value = get_column_value(record, column, location, field=field)
    if isinstance(value, str):
        raise text_for_messages_error(location, column)
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


def text_for_messages_error(location: str, column: str) -> ProblemsFound:
    """Build the problem of a column that holds texts, such as JSON, in place of messages."""
    message = f"{location} has text in '{column}', not a list of messages"
    hint = "save the list itself, as json.loads of the text returns it, in jsonl or parquet"
    return problem_error("data", message, path=("path",), hint=hint)


def get_role(
    message: Message, key: str, known: tuple[str, ...], location: str, *, field: str = "layout"
) -> str:
    """Return the role of a message."""
    value = get_column_value(message, key, location, field=field)
    if value not in known:
        speaker = "null" if value is None else repr(value)
        problem = f"{location} is from {speaker}, which is not a role"
        raise problem_error("data", problem, path=("path",), hint=f"roles are: {', '.join(known)}")
    return str(value)


def get_message_weight(message: Message, key: str | None, location: str) -> dict[str, float]:
    """Return the loss weight of a message under its key, empty without one.

    Raises:
        ProblemsFound: A data problem for an invalid weight.
    """
    value = None if key is None else message.get(key)
    if key is None or value is None:
        return {}
    if not isinstance(value, int | float) or not 0 <= value <= MAX_TOKEN_WEIGHT:
        problem = f"{location} has {value!r} in '{key}', which is not a weight"
        raise problem_error(
            "data",
            problem,
            path=("path",),
            hint="write a positive number, or 0 to exclude a message from the loss",
        )
    return {key: float(value)}


def drop_null_keys(message: Message) -> Message:
    """Return a message without null keys: parquet adds the keys of all messages to each."""
    return {key: value for key, value in message.items() if value is not None}
