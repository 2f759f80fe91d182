"""Formats of preference pairs in records."""

from difflib import get_close_matches
from typing import Any

from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.spec.chat_content import REASONING_KEYS, Message, parse_tools
from titanrun.components.data.spec.chat_formats import (
    Conversation,
    get_column_text,
    get_column_value,
    get_messages,
    parse_message,
)
from titanrun.config.problems import ProblemsFound, problem_error

MESSAGE_KEYS = frozenset(("role", "content", "name", "tool_calls", "tool_call_id", *REASONING_KEYS))
ConversationPair = tuple[Conversation, Conversation]


def parse_preference_pair(
    config: PreferenceDatasetConfig, record: Any, location: str
) -> ConversationPair:
    """Return the preferred conversation of a record, and the other one.

    Both columns hold either a reply to the prompt, as text or as a list of messages, or, if the
    record has no prompt, whole conversations. A prompt at the start of whole conversations is not
    repeated.
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
        if messages[-1]["role"] != "assistant":
            raise problem_error(
                "data",
                f"{location} does not end with an assistant message",
                path=("path",),
                hint="remove such pairs",
            )
        if len(asked) + len(messages) == 1:
            raise missing_prompt_error(config, record, location)
    tools = parse_tools(record, location)
    return Conversation([*asked, *chosen], tools), Conversation([*asked, *rejected], tools)


def get_prompt_messages(
    config: PreferenceDatasetConfig, record: Any, location: str
) -> list[Message]:
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
    return get_column_messages(record, config.prompt_column, location)


def missing_prompt_error(
    config: PreferenceDatasetConfig, record: Any, location: str
) -> ProblemsFound:
    """Build the problem of replies without a prompt."""
    column = config.prompt_column
    message = f"{location} has replies, but no '{column}'; it has: {', '.join(map(str, record))}"
    close = get_close_matches(
        column,
        [
            str(name)
            for name in record
            if name not in (config.chosen_column, config.rejected_column)
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
    """Return the messages in one of the two columns; a text becomes an assistant message."""
    if not isinstance(get_column_value(record, column, location, field=field), str):
        return get_column_messages(record, column, location)
    return [
        {"role": "assistant", "content": get_column_text(record, column, location, field=field)}
    ]


def get_column_messages(record: Any, column: str, location: str) -> list[Message]:
    """Return a list of messages with the keys that templates read.

    Others, such as scores, differ between equal messages.
    """
    found = []
    for number, message in enumerate(get_messages(record, column, location), start=1):
        parsed = parse_message(message, f"{location}, '{column}' message {number},")
        found.append({key: value for key, value in parsed.items() if key in MESSAGE_KEYS})
    return found
