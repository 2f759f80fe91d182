"""Rules about the files that documents are read from."""

from collections.abc import Iterator

from titanrun.components.data.columns import check_columns, columns_of, wanted_columns
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.source_files import find_files
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.data import datasets, exists


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
