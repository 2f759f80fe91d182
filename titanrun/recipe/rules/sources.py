"""Rules about the files that documents are read from."""

from collections.abc import Iterator

from titanrun.components.data.columns import check_columns, columns_of, wanted_columns
from titanrun.components.data.config import (
    DocumentsConfig,
    FilesConfig,
    HubConfig,
    MixtureDatasetConfig,
)
from titanrun.components.data.source_files import ending, find_files
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import exists, sources
from titanrun.recipe.rules.unread import unread


@rule("columns-exist", level="environment")
def columns_exist(run: Recipe) -> Iterator[Finding]:
    """Every column that column, format and filters name must be in the first of the files."""
    for place, dataset in sources(run):
        if not isinstance(dataset, FilesConfig) or not exists(dataset.path):
            continue
        try:
            file = find_files(dataset.path)[0]
            columns = columns_of(file)
            # the name of a text file's only column matters to filters and formats alone
            if columns is not None and (
                ending(file) != ".txt" or dataset.format is not None or dataset.filters
            ):
                check_columns(columns, wanted_columns(dataset), f"'{file}'")
        except ProblemsFound as error:
            for problem in error.problems:
                paths = ((*place, *problem.path), place)
                yield Finding(problem.message, paths, help=problem.help, code="data", section=place)


@rule("filter-has-limits")
def filter_has_limits(run: Recipe) -> Iterator[Finding]:
    """A filter with a column and nothing else lets every record through: say what the column may hold, or remove the filter."""
    for place, dataset in sources(run):
        for number, filter in enumerate(
            dataset.filters if isinstance(dataset, DocumentsConfig) else ()
        ):
            if not filter.has_limits:
                path = (*place, "filters", number)
                message = f"a filter of column '{filter.column}' without a limit has no effect"
                help = "set one_of, at_least, at_most, min_characters or max_characters, or remove the filter"
                yield Finding(message, ((*path, "column"), path), help=help, code="no-effect")


@rule("too-long-needs-whole-documents")
def too_long_needs_whole_documents(run: Recipe) -> Iterator[Finding]:
    """Where documents run on across rows, none is too long: too_long is read with packing best_fit or null only. Remove it."""
    for place, dataset in sources(run):
        if isinstance(dataset, DocumentsConfig) and dataset.packing in ("windows", "documents"):
            help = "set packing to best_fit or null, or remove it"
            yield unread(
                (*place, "too_long"),
                (*place, "packing"),
                f"is {dataset.packing}, and no document is too long",
                help,
            )


@rule("mixture-deals-rows")
def mixture_deals_rows(run: Recipe) -> Iterator[Finding]:
    """Whether rows are shuffled and come again is the mixture's to say: in one of its sources it has no effect. Say it of the mixture."""
    for place, mixture in sources(run):
        for number in (
            range(len(mixture.sources)) if isinstance(mixture, MixtureDatasetConfig) else ()
        ):
            for name in ("shuffle", "repeat"):
                path = (*place, "sources", number, "dataset", name)
                message = f"{name} has no effect in a source: the mixture deals the rows"
                yield Finding(
                    message,
                    (path,),
                    help=f"set {name} of the mixture",
                    code="no-effect",
                    severity="warning",
                    if_written=True,
                )


@rule("stream-needs-an-end")
def stream_needs_an_end(run: Recipe) -> Iterator[Finding]:
    """What is streamed is tokenised before the first step, so that a run can go on anywhere in it: max_documents says how much."""
    for place, dataset in sources(run):
        if isinstance(dataset, HubConfig) and dataset.streaming and dataset.max_documents is None:
            message = f"dataset '{dataset.name}' is streamed, and nothing says how many documents are read before training begins"
            help = "set max_documents, or streaming: false to fetch the whole split first"
            yield Finding(
                message, ((*place, "max_documents"), (*place, "streaming"), place), help=help
            )
