"""Formats of conversations in files: messages, ShareGPT, Alpaca, prompt and completion."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from titanrun.components.data.spec.chat_content import (
    Message,
    check_message_characters,
    check_text,
    check_tool_calls,
    parse_content,
    parse_tools,
)
from titanrun.config.problems import problem_error

Record = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_TOKEN_WEIGHT = 1e6
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


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, with the tools that the assistant may call."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None


def parse_message(message: Message, location: str) -> Message:
    """Return a message with `role` and `content`. Further keys are kept for the template.

    Raises:
        ProblemsFound: A data problem if the message is not in the format of OpenAI.
    """
    role, kept = get_role(message, "role", ROLES, location), drop_null_keys(message)
    check_tool_calls(message, location)
    if not message.get("tool_calls"):
        get_column_value(message, "content", location)
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
            {**parse_message(message, where), **get_message_weight(message, columns, where)}
        )
    return Conversation(found, parse_tools(record, location))


def parse_sharegpt_format(record: Record, columns: ChatColumns, location: str) -> Conversation:
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
    return Conversation(found, parse_tools(record, location))


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
    """Convert a prompt and a completion to messages."""
    prompt = get_column_text(record, columns.prompt, location, field="prompt_column")
    completion = get_column_text(record, columns.completion, location, field="completion_column")
    return Conversation(
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    )


CHAT_FORMATS: dict[str, Callable[[Record, ChatColumns, str], Conversation]] = {
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
        hint = f"did you mean '{close[0]}'?" if close else f"set {named} to match the files"
        raise problem_error(
            "data", f"{location} has no '{column}'; it has: {known}", path=(field,), hint=hint
        )
    return record[column]


def get_column_text(record: Record, column: str, location: str, *, field: str = "layout") -> str:
    """Return the text in a column. Raise a data problem if it has invalid characters."""
    value = get_column_value(record, column, location, field=field)
    check_text(value, column, location)
    return str(value)


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
