"""Rules about texts of records beside their conversations: system texts and earlier turns."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.spec.chat_formats import has_system_message, parse_conversation
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.config.tree import format_path
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.column_guess import HISTORY, SYSTEM_TEXTS
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.empty_replies import list_first_records
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import read_small_records

TO_MESSAGES = "write these turns into messages, for layout messages"


@dataclass(frozen=True, slots=True)
class CheckedRecords:
    """Records of a dataset: all of a small one, or the first ones of the first file."""

    place: DataPath
    dataset: ChatDatasetConfig
    records: Sequence[Mapping[str, Any]]
    are_all: bool

    def describe(self) -> str:
        """Return how many records of which files these are."""
        amount = pluralize(len(self.records), "record")
        return f"{'' if self.are_all else 'the first '}{amount} of '{self.dataset.path}'"

    @property
    def lack_system_column(self) -> bool:
        """Whether none of the records has the column that system_column names."""
        column = self.dataset.system_column
        return column is not None and not any(column in record for record in self.records)


@rule("system-texts-are-read", level="environment")
def system_texts_are_read(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about system texts and earlier turns of records that the dataset does not read.

    Name a column of system texts with system_column, or write null there to train without them.
    Turns in a column `history`, which Alpaca-like records have, belong into messages. Small files
    are read as a whole, and the first hundred records of other ones.
    """
    for checked in iter_checked_records(run):
        setting = (*checked.place, "system_column")
        for name in () if checked.lack_system_column else SYSTEM_TEXTS:
            unread = sum(
                has_unread_system_text(checked.dataset, one, name) for one in checked.records
            )
            if unread:
                read = checked.dataset.system_column
                hint = (
                    f"set {format_path(setting)}: {name}, or null to train without it"
                    if read is None
                    else f"one column of system texts is read, '{read}': write these texts there"
                )
                yield build_warning(checked, unread, f"a system text in '{name}'", hint, setting)
        turns = sum(has_unread_history(checked.dataset, one) for one in checked.records)
        if turns:
            yield build_warning(checked, turns, f"earlier turns in '{HISTORY}'", TO_MESSAGES)


@rule("system-column-is-there", level="environment")
def system_column_is_there(run: Recipe) -> Iterator[RuleViolation]:
    """Require a record with the column that system_column names.

    Without one the run ends after reading all records. A small file is read as a whole; for another
    one, whose first hundred records have none, a warning is shown.
    """
    for checked in iter_checked_records(run):
        column, records = str(checked.dataset.system_column), checked.records
        if not records or not checked.lack_system_column:
            continue
        known = dict.fromkeys(str(name) for record in records for name in record)
        close = get_close_matches(column, known, n=1)
        yield RuleViolation(
            f"no '{column}' in {checked.describe()}",
            ((*checked.place, "system_column"), checked.place),
            hint=f"did you mean '{close[0]}'?" if close else "name a column of texts, or remove it",
            code="data",
            severity="error" if checked.are_all else "warning",
            section=checked.place,
        )


def iter_checked_records(run: Recipe) -> Iterator[CheckedRecords]:
    """Yield the records to check of each dataset of conversations in files on this machine."""
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ChatDatasetConfig) or dataset.path is None:
            continue
        with suppress(ProblemsFound, OSError, ValueError):  # other rules report it
            small = read_small_records(dataset.path)
            records = (
                list_first_records(dataset.path) if small is None else [one for _, one in small]
            )
            yield CheckedRecords(place, dataset, records, small is not None)


def has_unread_system_text(
    dataset: ChatDatasetConfig, record: Mapping[str, Any], name: str
) -> bool:
    """Return whether a record has a system text that is neither read nor one of its messages.

    `name` is the column of such texts.
    """
    text, columns = record.get(name), dataset.get_columns()
    if not isinstance(text, str) or not text:
        return False
    is_prompt = dataset.layout == "prompt_completion" and columns.prompt == name
    if columns.system == name or is_prompt:
        return False
    if columns.system is not None:
        return text != record.get(columns.system)
    try:
        conversation = parse_conversation(dataset.layout, record, columns, "")
    except ProblemsFound:
        return False  # other rules report it
    return not has_system_message(conversation.messages)


def has_unread_history(dataset: ChatDatasetConfig, record: Mapping[str, Any]) -> bool:
    """Return whether a record has turns before its instruction."""
    turns = record.get(HISTORY)
    return dataset.layout == "alpaca" and isinstance(turns, list) and bool(turns)


def build_warning(
    checked: CheckedRecords, count: int, what: str, hint: str, waived: DataPath | None = None
) -> RuleViolation:
    """Return the violation of a warning that something in some records is not read."""
    verb = "has" if count == 1 else "have"
    return RuleViolation(
        f"{count} of {checked.describe()} {verb} {what}, which no setting reads",
        (checked.place,),
        hint=hint,
        code="data",
        severity="warning",
        section=checked.place,
        waived_by_null=waived,
    )
