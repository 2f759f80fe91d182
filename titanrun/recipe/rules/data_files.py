"""Rules about the files that documents are read from."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import (
    DocumentsConfig,
    FilesConfig,
    MixtureDatasetConfig,
)
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import (
    check_columns,
    find_file_columns,
    get_required_columns,
)
from titanrun.components.data.spec.file_formats import check_is_text
from titanrun.components.data.spec.json_lines import (
    DAMAGED,
    DAMAGED_IN_STREAM_HINT,
    RECORD_CHECKS,
    check_first_and_last_record,
)
from titanrun.components.data.stream_config import StreamFields
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets, matches_existing_path
from titanrun.recipe.rules.no_effect import build_no_effect_violation
from titanrun.recipe.rules.registry import RuleViolation, rule

MAX_FILES_TOLD = 5
"""Files of a dataset whose records a rule names."""
SMALL_SHARE = 0.01
"""Share of a mixture below which a weight may have been meant in another unit."""


@rule("columns-exist", level="environment")
def columns_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require every column that column, format and filters name to exist.

    The first of the files is checked.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, FilesConfig) or not matches_existing_path(dataset.path):
            continue
        try:
            file = resolve_data_files(dataset.path)[0]
            columns = find_file_columns(file)
            # only filters and formats depend on the name of a text file's single column
            if columns is not None and (
                get_data_suffix(file) != ".txt" or dataset.format is not None or dataset.filters
            ):
                check_columns(columns, get_required_columns(dataset), f"'{file}'")
        except ProblemsFound as error:
            for problem in error.problems:
                paths = ((*place, *problem.path), place)
                yield RuleViolation(
                    problem.message, paths, hint=problem.hint, code="data", section=place
                )


@rule("records-are-json", level="environment")
def records_are_json(run: Recipe) -> Iterator[RuleViolation]:
    """Require the first hundred lines and the last line of every file to be records.

    All lines of small files are read. In jsonl files, and json files of lines, each line is one
    JSON object. A download that was cut ends within one, without the end of an array, or of a
    parquet file. Fetch or write the file again. A compressed file that is named as a text file
    needs its suffix.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(dataset, FilesConfig | ChatDatasetConfig | RepliesConfig):
            continue
        # such a run may not read the line, or goes on without it
        may_pass = isinstance(dataset, FilesConfig) and (
            dataset.bad_records == "skip" or dataset.max_documents is not None
        )
        if dataset.path is None or not matches_existing_path(dataset.path):
            continue
        check = check_is_text if may_pass else check_first_and_last_record
        for problem in islice(iter_record_problems(dataset, check), MAX_FILES_TOLD):
            yield RuleViolation(
                problem.message,
                ((*place, *problem.path), place),
                hint=problem.hint,
                code="data",
                section=place,
            )


def iter_record_problems(
    dataset: FilesConfig | ChatDatasetConfig | RepliesConfig, check: Callable[[Path], None]
) -> Iterator[Problem]:
    """Yield a problem of each file that is refused by a check of its format or its records."""
    try:
        files = resolve_data_files(str(dataset.path), (*RECORD_CHECKS, ".csv", ".txt", ".arrow"))
    except ProblemsFound:
        return  # columns-exist and first-conversation-fits tell that they cannot be found
    for file in files:
        try:
            check(file)
        except OSError:
            continue  # the run names it
        except ProblemsFound as error:
            for problem in error.problems:
                if (
                    problem.rule != DAMAGED
                    or not isinstance(dataset, StreamFields)
                    or not dataset.is_streamed
                ):
                    yield problem
                elif not dataset.skips_bad_files:
                    yield replace(problem, hint=DAMAGED_IN_STREAM_HINT)


@rule("filter-has-limits")
def filter_has_limits(run: Recipe) -> Iterator[RuleViolation]:
    """Require a limit in each filter.

    A filter with only a column keeps every record. Set the values that the column may have, or
    remove the filter.
    """
    for place, dataset in get_all_datasets(run):
        for number, record_filter in enumerate(
            dataset.filters if isinstance(dataset, DocumentsConfig) else ()
        ):
            if not record_filter.has_limits:
                path = (*place, "filters", number)
                message = (
                    f"a filter of column '{record_filter.column}' without a limit has no effect"
                )
                hint = (
                    "set one_of, at_least, at_most, min_characters or max_characters, or "
                    "remove the filter"
                )
                yield RuleViolation(message, ((*path, "column"), path), hint=hint, code="no-effect")


@rule("too-long-needs-whole-documents")
def too_long_needs_whole_documents(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about too_long if documents continue across sequences.

    No document is too long then: too_long is read with packing best_fit or null only. Remove it.
    """
    for place, dataset in get_all_datasets(run):
        if isinstance(dataset, DocumentsConfig) and dataset.packing in ("windows", "documents"):
            hint = "set packing to best_fit or null, or remove it"
            yield build_no_effect_violation(
                (*place, "too_long"),
                (*place, "packing"),
                f"is {dataset.packing}, which allows any length",
                hint,
            )


@rule("mixture-deals-rows")
def mixture_orders_sequences(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about shuffle and repeat in the sources of a mixture.

    The mixture decides whether sequences are shuffled and repeated: in its sources these settings
    have no effect. Set them in the mixture.
    """
    for place, mixture in get_all_datasets(run):
        for number in (
            range(len(mixture.sources)) if isinstance(mixture, MixtureDatasetConfig) else ()
        ):
            for name in ("shuffle", "repeat"):
                path = (*place, "sources", number, "dataset", name)
                message = f"{name} has no effect in a source: the mixture orders the sequences"
                yield RuleViolation(
                    message,
                    (path,),
                    hint=f"set {name} in the mixture",
                    code="no-effect",
                    severity="warning",
                    applies_only_if_written=True,
                )


@rule("mixture-weights-have-one-scale")
def mixture_weights_have_one_scale(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about weights of a mixture of which some look like percentages, others like fractions.

    Weights are relative to their sum: 70 beside 0.3 is not 70% beside 30%, but 99.6% beside 0.4%.
    Write all of them in one unit. Percentages that add up to 100 are not warned about.
    """
    for place, mixture in get_all_datasets(run):
        if not isinstance(mixture, MixtureDatasetConfig) or not mixture.sources:
            continue
        weights = [source.weight for source in mixture.sources]
        total, least, most = sum(weights), min(weights), max(weights)
        if not least < 1 < most or least / total >= SMALL_SHARE or 99 <= total <= 101:
            continue
        paths = tuple(
            (*place, "sources", weights.index(weight), "weight") for weight in (least, most)
        )
        yield RuleViolation(
            f"weight {least:g} beside {most:g} is {least / total:.2%} of the mixture",
            paths,
            hint="weights are relative to their sum: write all as fractions, or all as percentages",
            severity="warning",
        )
