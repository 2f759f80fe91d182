"""How records write pairs of replies down."""

from difflib import get_close_matches
from typing import Any

from titanrun.components.data.chat_layouts import ROLES, Message, listed, role_of, text_of, value_of
from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.config.problems import ProblemsFound, fail

Pair = tuple[list[Message], list[Message]]


def pair_in(config: PreferenceDatasetConfig, record: Any, place: str) -> Pair:
    """The preferred conversation of a record, and the other one.

    Both columns hold either a reply to what the prompt asks, as text or as a list of messages, or, where the record has no prompt, whole
    conversations. Whole ones that begin with the prompt have it once.
    """
    asked = prompt_in(config, record, place)
    chosen = replies_in(record, config.chosen_column, "chosen_column", place)
    rejected = replies_in(record, config.rejected_column, "rejected_column", place)
    if asked and chosen[: len(asked)] == asked == rejected[: len(asked)]:
        asked = []
    if chosen == rejected:
        raise fail(
            "data",
            f"{place} prefers a reply to itself",
            path=("path",),
            help="leave such pairs out",
        )
    for messages in (chosen, rejected):
        if messages[-1]["role"] != "assistant":
            raise fail(
                "data",
                f"{place} does not end with what the assistant says",
                path=("path",),
                help="leave such pairs out",
            )
        if len(asked) + len(messages) == 1:
            raise no_prompt(config, record, place)
    return [*asked, *chosen], [*asked, *rejected]


def prompt_in(config: PreferenceDatasetConfig, record: Any, place: str) -> list[Message]:
    """What was said before both replies; nothing where the record has no prompt."""
    if record.get(config.prompt_column) is None:
        return []
    if isinstance(record[config.prompt_column], str):
        return [
            {
                "role": "user",
                "content": text_of(record, config.prompt_column, place, field="prompt_column"),
            }
        ]
    return messages_in(record, config.prompt_column, place)


def no_prompt(config: PreferenceDatasetConfig, record: Any, place: str) -> ProblemsFound:
    """The problem of replies to nothing."""
    column = config.prompt_column
    message = f"{place} has replies, and no '{column}' that they answer; it has: {', '.join(map(str, record))}"
    close = get_close_matches(
        column,
        [
            str(name)
            for name in record
            if name not in (config.chosen_column, config.rejected_column)
        ],
        n=1,
    )
    help = (
        f"did you mean '{close[0]}'?"
        if close
        else "name the column of the prompt, or write lists of messages"
    )
    return fail("data", message, path=("prompt_column",), help=help)


def replies_in(record: Any, column: str, field: str, place: str) -> list[Message]:
    """The messages in one of the two columns; a text is what the assistant says."""
    if not isinstance(value_of(record, column, place, field=field), str):
        return messages_in(record, column, place)
    return [{"role": "assistant", "content": text_of(record, column, place, field=field)}]


def messages_in(record: Any, column: str, place: str) -> list[Message]:
    """A list of messages with role and content."""
    found = []
    for number, message in enumerate(listed(record, column, place), start=1):
        where = f"{place}, '{column}' message {number},"
        found.append(
            {
                "role": role_of(message, "role", ROLES, where),
                "content": text_of(message, "content", where),
            }
        )
    return found
