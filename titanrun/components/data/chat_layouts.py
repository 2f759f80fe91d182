"""How files write conversations down: lists of messages, ShareGPT, Alpaca, prompt and completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from titanrun.config.problems import fail

Message = dict[str, Any]
Record = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
LARGEST_WEIGHT = 1e6
KINDS = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
"""What JSON can hold beside text."""
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_response": "tool",
    **{role: role for role in ROLES},
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a record is read from; each layout takes those it knows. `weight` is a key of messages."""

    messages: str
    prompt: str
    completion: str
    weight: str | None = None


def from_messages(record: Record, columns: Columns, place: str) -> list[Message]:
    """A list of messages with `role` and `content`; further keys of a message reach the template."""
    found = []
    for number, message in enumerate(listed(record, columns.messages, place), start=1):
        where = f"{place}, message {number},"
        role, content = role_of(message, "role", ROLES, where), text_of(message, "content", where)
        found.append(
            {
                **present(message),
                "role": role,
                "content": content,
                **weight_in(message, columns, where),
            }
        )
    return found


def from_sharegpt(record: Record, columns: Columns, place: str) -> list[Message]:
    """A list of turns with `from` and `value`."""
    found = []
    for number, turn in enumerate(listed(record, columns.messages, place), start=1):
        where = f"{place}, message {number},"
        role = role_of(turn, "from", tuple(SHAREGPT_ROLES), where)
        found.append(
            {
                "role": SHAREGPT_ROLES[role],
                "content": text_of(turn, "value", where),
                **weight_in(turn, columns, where),
            }
        )
    return found


def from_alpaca(record: Record, columns: Columns, place: str) -> list[Message]:
    """`instruction`, with `input` below it where there is one, and `output`."""
    instruction, output = text_of(record, "instruction", place), text_of(record, "output", place)
    given = text_of(record, "input", place) if record.get("input") is not None else ""
    asked = f"{instruction}\n\n{given}" if given else instruction
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]


def from_prompt_completion(record: Record, columns: Columns, place: str) -> list[Message]:
    """One text that asks and one that answers."""
    prompt = text_of(record, columns.prompt, place, field="prompt_column")
    completion = text_of(record, columns.completion, place, field="completion_column")
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


LAYOUTS: dict[str, Callable[[Record, Columns, str], list[Message]]] = {
    "messages": from_messages,
    "sharegpt": from_sharegpt,
    "alpaca": from_alpaca,
    "prompt_completion": from_prompt_completion,
}


OF_CHATS = ("layout", "column", "prompt_column", "completion_column")
"""Fields that name a column of a conversation; those of a pair have no layout beside."""


def value_of(record: Record, column: str, place: str, *, field: str = "layout") -> Any:
    """What a record has in a column, which `field` of the dataset names. Raises a data problem that names the columns there are."""
    if column not in record:
        known = ", ".join(map(str, record)) or "none"
        close = get_close_matches(column, list(map(str, record)), n=1)
        named = "layout and its columns" if field in OF_CHATS else field
        help = f"did you mean '{close[0]}'?" if close else f"set {named} to what the files hold"
        raise fail("data", f"{place} has no '{column}'; it has: {known}", path=(field,), help=help)
    return record[column]


def text_of(record: Record, column: str, place: str, *, field: str = "layout") -> str:
    """The text in a column; half a surrogate pair, which JSON can write, is no character and has no token."""
    value = value_of(record, column, place, field=field)
    if not isinstance(value, str):
        kind = KINDS.get(type(value), type(value).__name__)
        raise fail(
            "data",
            f"{place} has {kind} in '{column}', not text",
            path=("path",),
            help="leave such conversations out",
        )
    # U+FDD0 and U+FDD1 are no characters either: they mark replies in what a template gives
    bad = next(
        (
            number
            for number, letter in enumerate(value, start=1)
            if "\ud800" <= letter <= "\udfff" or letter in "\ufdd0\ufdd1"
        ),
        None,
    )
    if bad is not None:
        message = f"{place} has no character of Unicode in '{column}' at place {bad}"
        raise fail(
            "data", message, path=("path",), help="write the character whole, or leave it out"
        )
    return value


def listed(record: Record, column: str, place: str) -> list[Message]:
    """The messages in a column."""
    value = value_of(record, column, place, field="column")
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(entry, dict) for entry in value)
    ):
        message = f"{place} has no list of messages in '{column}'"
        raise fail(
            "data", message, path=("path",), help='write [{"role": "user", "content": "..."}, ...]'
        )
    return value


def role_of(message: Message, key: str, known: tuple[str, ...], place: str) -> str:
    """Who speaks."""
    value = value_of(message, key, place)
    if value not in known:
        problem = f"{place} is from {'null' if value is None else repr(value)}, which is no role"
        raise fail("data", problem, path=("path",), help=f"roles are: {', '.join(known)}")
    return str(value)


def weight_in(message: Message, columns: Columns, place: str) -> dict[str, float]:
    """What a message weighs in the loss, under its key; nothing where it does not say. Raises a data problem for what is no weight."""
    value = None if columns.weight is None else message.get(columns.weight)
    if columns.weight is None or value is None:
        return {}
    if not isinstance(value, int | float) or not 0 <= value <= LARGEST_WEIGHT:
        problem = f"{place} has {value!r} in '{columns.weight}', which is no weight"
        raise fail(
            "data",
            problem,
            path=("path",),
            help="write a positive number, or 0 where nothing of a message is learned",
        )
    return {columns.weight: float(value)}


def present(message: Message) -> Message:
    """A message without keys that are null: parquet gives every message the keys that any of them has."""
    return {key: value for key, value in message.items() if value is not None}
