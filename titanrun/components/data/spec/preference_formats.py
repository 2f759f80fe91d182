"""Formats of preference pairs and labelled replies in records."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    PreferenceDatasetConfig,
    RepliesConfig,
)
from titanrun.components.data.spec.chat_content import REASONING_KEYS, Message, parse_tools
from titanrun.components.data.spec.chat_formats import (
    Conversation,
    get_column_text,
    get_column_value,
    get_messages,
    get_system_messages,
    parse_message,
    parse_turn,
)
from titanrun.config.problems import ProblemsFound, problem_error

MESSAGE_KEYS = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", *REASONING_KEYS))
LABELS = {"false": False, "true": True, "0": False, "1": True}
"""Labels as texts: csv files hold no others."""
ConversationPair = tuple[Conversation, Conversation]


def parse_replies(config: RepliesConfig, record: Any, location: str) -> Sequence[Conversation]:
    """Return the conversations of a record, each of which ends with a reply that counts."""
    if isinstance(config, LabelledDatasetConfig):
        return [conversation for conversation, _ in parse_labelled(config, record, location)]
    assert isinstance(config, PreferenceDatasetConfig), "there are two datasets of replies"
    return parse_preference_pair(config, record, location)


def parse_labelled(
    config: LabelledDatasetConfig, record: Any, location: str
) -> Sequence[tuple[Conversation, bool]]:
    """Return the conversations of a record, each with whether its reply is desirable."""
    if config.from_pairs:
        chosen, rejected = parse_preference_pair(config, record, location)
        return [(chosen, True), (rejected, False)]
    asked = get_prompt_messages(config, record, location)
    reply = get_reply_messages(record, config.completion_column, "completion_column", location)
    if asked and reply[: len(asked)] == asked:
        asked = []
    check_ends_with_reply(reply, location)
    if len(asked) + len(reply) == 1:
        raise missing_prompt_error(config, record, location)
    before = [*get_instructions(config, record, location), *asked]
    conversation = Conversation([*before, *reply], parse_tools(record, location))
    return [(conversation, parse_label(config, record, location))]


def parse_label(config: LabelledDatasetConfig, record: Any, location: str) -> bool:
    """Return the label of a record."""
    label = get_column_value(record, config.label_column, location, field="label_column")
    known = LABELS.get(str(label).strip().lower())
    if known is None:
        raise problem_error(
            "data",
            f"{location} has the label {label!r}, which is neither true nor false",
            path=("label_column",),
            hint="name a column of true and false",
        )
    return known


def parse_preference_pair(
    config: PreferenceDatasetConfig | LabelledDatasetConfig, record: Any, location: str
) -> ConversationPair:
    """Return the preferred conversation of a record, and the other one.

    Both columns hold either a reply to the prompt, as a text, a message or a list of messages, or,
    if the record has no prompt, whole conversations. A prompt at the start of whole conversations
    is not repeated.
    """
    asked = get_prompt_messages(config, record, location)
    chosen = get_reply_messages(record, config.chosen_column, "chosen_column", location)
    rejected = get_reply_messages(record, config.rejected_column, "rejected_column", location)
    if asked and chosen[: len(asked)] == asked == rejected[: len(asked)]:
        asked = []
    if chosen == rejected:
        raise problem_error(
            "data",
            f"{location} has equal chosen and rejected replies",
            path=("path",),
            hint="remove such pairs",
        )
    for messages in (chosen, rejected):
        check_ends_with_reply(messages, location)
        if len(asked) + len(messages) == 1:
            raise missing_prompt_error(config, record, location)
    tools = parse_tools(record, location)
    before = [*get_instructions(config, record, location), *asked]
    return Conversation([*before, *chosen], tools), Conversation([*before, *rejected], tools)


def check_ends_with_reply(messages: list[Message], location: str) -> None:
    """Raise ProblemsFound if the last message is not the assistant's."""
    if messages[-1]["role"] != "assistant":
        raise problem_error(
            "data",
            f"{location} does not end with an assistant message",
            path=("path",),
            hint="remove such records",
        )


def get_prompt_messages(config: RepliesConfig, record: Any, location: str) -> list[Message]:
    """Return the messages before both replies, empty if the record has no prompt."""
    if record.get(config.prompt_column) is None:
        return []
    if isinstance(record[config.prompt_column], str):
        return [
            {
                "role": "user",
                "content": get_column_text(
                    record, config.prompt_column, location, field="prompt_column"
                ),
            }
        ]
    return get_column_messages(record, config.prompt_column, "prompt_column", location)


def get_instructions(config: RepliesConfig, record: Any, location: str) -> list[Message]:
    """Return the system message of a record, none if it has no system text."""
    column = config.system_column
    return [] if column is None else get_system_messages(record, column, location)


def missing_prompt_error(config: RepliesConfig, record: Any, location: str) -> ProblemsFound:
    """Build the problem of replies without a prompt."""
    column = config.prompt_column
    message = f"{location} has replies, but no '{column}'; it has: {', '.join(map(str, record))}"
    close = get_close_matches(
        column,
        [
            str(name)
            for name in record
            if name not in [column for column, _ in config.get_reply_columns()]
        ],
        n=1,
    )
    hint = (
        f"did you mean '{close[0]}'?"
        if close
        else "name the column of the prompt, or write lists of messages"
    )
    return problem_error("data", message, path=("prompt_column",), hint=hint)


def get_reply_messages(record: Any, column: str, field: str, location: str) -> list[Message]:
    """Return the messages in a column of a reply; a text becomes an assistant message.

    A single message may stand without a list around it.
    """
    value = get_column_value(record, column, location, field=field)
    if isinstance(value, str):
        text = get_column_text(record, column, location, field=field)
        return [{"role": "assistant", "content": text}]
    if isinstance(value, dict):
        return get_column_messages({column: [value]}, column, field, location)
    return get_column_messages(record, column, field, location)


def get_column_messages(record: Any, column: str, field: str, location: str) -> list[Message]:
    """Return a list of messages with the keys that templates read, also of turns of ShareGPT.

    Others, such as scores, differ between equal messages.
    """
    found = []
    for number, message in enumerate(get_messages(record, column, location, field=field), start=1):
        where = f"{location}, '{column}' message {number},"
        parse = parse_turn if is_sharegpt_turn(message) else parse_message
        parsed = parse(message, where, field=field)
        found.append({key: value for key, value in parsed.items() if key in MESSAGE_KEYS})
    return found


def is_sharegpt_turn(message: Message) -> bool:
    """Return whether a message names its speaker under `from`, and has no role.

    Parquet adds the keys of all messages to each, as null.
    """
    return message.get("role") is None and message.get("from") is not None
