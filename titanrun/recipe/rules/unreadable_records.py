"""Rule about records of conversations, beside the first, that do not match the layout."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from titanrun.components.data.spec.compression import is_compressed
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.chat import (
    NUM_RECORDS_CHECKED,
    ConversationDataset,
    parse_conversations,
)
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import LIGHT_READERS, MAX_COUNTED_BYTES

MAX_RECORDS_TOLD = 5
"""Records of a dataset that are named."""


@rule("conversations-can-be-read", level="environment")
def conversations_can_be_read(run: Recipe) -> Iterator[RuleViolation]:
    """Require the records of conversations to match the layout.

    Correct or remove those that are named, at most five at a time. All records of small files are
    read, and the first hundred of others.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, ConversationDataset) or dataset.path is None:
            continue
        for problem in islice(iter_unreadable_records(dataset), MAX_RECORDS_TOLD):
            yield RuleViolation(
                problem.message,
                ((*place, *problem.path), place),
                # the first record matches the layout
                hint=problem.hint if problem.path == ("path",) else "correct or remove the record",
                code="data",
                section=place,
            )


def iter_unreadable_records(dataset: ConversationDataset) -> Iterator[Problem]:
    """Yield the problem of each record that does not match the layout.

    Files whose first record does not match it are left out: another rule reports them.
    """
    with suppress(ProblemsFound, OSError, ValueError):  # other rules and the run report it
        for file in resolve_data_files(str(dataset.path), tuple(LIGHT_READERS)):
            with suppress(ProblemsFound, OSError, ValueError):
                yield from iter_file_problems(dataset, file)


def iter_file_problems(dataset: ConversationDataset, file: Path) -> Iterator[Problem]:
    """Yield the problems of the records of a file, nothing if the first one has any.

    Raises:
        ProblemsFound: If a record is damaged.
        OSError, ValueError: If the file cannot be read.
    """
    is_small = not is_compressed(file) and file.stat().st_size <= MAX_COUNTED_BYTES
    records = LIGHT_READERS[get_data_suffix(file)](file)
    for number, (location, record) in enumerate(
        islice(records, None if is_small else NUM_RECORDS_CHECKED)
    ):
        try:
            parse_conversations(dataset, record, location)
        except ProblemsFound as found:
            if number == 0:
                return
            yield found.problems[0]
