"""Rule about conversations whose replies are empty."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.spec.chat_content import REASONING_KEYS
from titanrun.components.data.spec.chat_formats import Conversation
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.chat import (
    NUM_RECORDS_CHECKED,
    RECORD_READERS,
    find_task,
    parse_conversations,
)
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import read_small_records

ASSISTANT = "assistant"


@rule("replies-have-text", level="environment")
def replies_have_text(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about replies of the assistant without text or tool calls.

    A model that is trained on them learns to end at once. Remove such conversations from the data.
    Small files are read as a whole, and the first hundred records of other ones.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ChatDatasetConfig) or dataset.path is None:
            continue
        if dataset.turn_weights is not None or find_task(run, place) is not None:
            continue  # they may count for nothing
        with suppress(ProblemsFound, OSError, ValueError):  # other rules report it
            violation = count_empty_replies(dataset, dataset.path, place)
            if violation is not None:
                yield violation


def count_empty_replies(
    dataset: ChatDatasetConfig, named: str, place: DataPath
) -> RuleViolation | None:
    """Return the violation of conversations with an empty reply, None if all have text."""
    records = read_small_records(named)
    amount = "" if records is not None else "the first "
    checked = [record for _, record in records or ()] or list_first_records(named)
    conversations = [parse_conversations(dataset, record, "")[0] for record in checked]
    empty = sum(has_empty_reply(conversation) for conversation in conversations)
    if not empty:
        return None
    message = (
        f"{empty} of {amount}{pluralize(len(checked), 'conversation')} of '{named}' "
        f"{'has' if empty == 1 else 'have'} an empty reply, which the model would learn"
    )
    return RuleViolation(
        message,
        (place,),
        hint="remove them from the data",
        code="data",
        severity="warning",
        section=place,
    )


def list_first_records(named: str) -> list[Mapping[str, Any]]:
    """Return the first records of the first file."""
    file = resolve_data_files(named, tuple(RECORD_READERS))[0]
    return list(islice(RECORD_READERS[get_data_suffix(file)](file), NUM_RECORDS_CHECKED))


def has_empty_reply(conversation: Conversation) -> bool:
    """Return whether a reply of the assistant has neither text, nor reasoning, nor tool calls."""
    return any(
        message["role"] == ASSISTANT
        and not any(
            str(message.get(key) or "").strip()
            for key in ("content", "tool_calls", *REASONING_KEYS)
        )
        for message in conversation.messages
    )
