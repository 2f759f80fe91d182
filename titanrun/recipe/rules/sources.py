"""Rules about the files that documents are read from."""

from collections.abc import Iterator

from titanrun.components.data.columns import check_columns, columns_of, wanted_columns
from titanrun.components.data.config import DocumentsConfig, TextDatasetConfig
from titanrun.components.data.source_files import find_files
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import datasets, exists
from titanrun.recipe.rules.unread import unread


@rule("columns-exist", level="environment")
def columns_exist(run: Recipe) -> Iterator[Finding]:
    """Every column that column, format and filters name must be in the first of the files."""
    for section, dataset in datasets(run):
        if not isinstance(dataset, TextDatasetConfig) or not exists(dataset.path):
            continue
        try:
            file = find_files(dataset.path)[0]
            columns = columns_of(file)
            # the name of a text file's only column matters to filters and formats alone
            if columns is not None and (file.suffix.lower() != ".txt" or dataset.format is not None or dataset.filters):
                check_columns(columns, wanted_columns(dataset), f"'{file}'")
        except ProblemsFound as error:
            for problem in error.problems:
                paths = ((section, "dataset", *problem.path), (section, "dataset"))
                yield Finding(problem.message, paths, help=problem.help, code="data")


@rule("too-long-needs-whole-documents")
def too_long_needs_whole_documents(run: Recipe) -> Iterator[Finding]:
    """Where documents run on across rows, none is too long: too_long is read with packing best_fit or null only. Remove it."""
    for section, dataset in datasets(run):
        if isinstance(dataset, DocumentsConfig) and dataset.packing in ("windows", "documents"):
            place = (section, "dataset")
            help = "set packing to best_fit or null, or remove it"
            yield unread((*place, "too_long"), (*place, "packing"), f"is {dataset.packing}, and no document is too long", help)
