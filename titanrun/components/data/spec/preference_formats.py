"""Formats of preference pairs and labelled replies in records."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    PreferenceDatasetConfig,
    RepliesConfig,
)
from titanrun.components.data.spec.chat_content import Message, parse_tools
from titanrun.components.data.spec.chat_formats import (
    Conversation,
    check_ends_with_reply,
    get_column_value,
    get_prompt_messages,
    get_reply_messages,
    get_system_messages,
)
from titanrun.config.problems import ProblemsFound, problem_error

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
    asked = get_asked_messages(config, record, location)
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
            hint="write the labels of the file as true and false, or name a column of such labels",
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
    asked = get_asked_messages(config, record, location)
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


def get_asked_messages(config: RepliesConfig, record: Any, location: str) -> list[Message]:
    """Return the messages before both replies, empty if the record has no prompt."""
    if record.get(config.prompt_column) is None:
        return []
    return get_prompt_messages(record, config.prompt_column, location)


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
