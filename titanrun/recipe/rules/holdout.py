"""Rules about documents that training holds out for validation."""

from collections.abc import Iterator

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    ConversationsConfig,
)
from titanrun.components.data.config import (
    DatasetConfig,
    DocumentsConfig,
    FilesConfig,
    MixtureDatasetConfig,
    TinyDatasetConfig,
)
from titanrun.components.data.replies_config import RepliesConfig, TinyPairsConfig
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import check_columns, find_file_columns
from titanrun.components.data.spec.holdout_limits import MIN_DOCUMENTS, ONE_DOCUMENT_HINT
from titanrun.config.base import iter_nested_configs
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import matches_existing_path
from titanrun.recipe.rules.registry import RuleViolation, rule

HOLDOUT: DataPath = ("validation", "holdout")
HOLDOUT_BY: DataPath = ("validation", "holdout_by")
TRAINING_DATASET: DataPath = ("training", "dataset")
DOCUMENT_DATASETS = (
    DocumentsConfig,
    ConversationsConfig,
    RepliesConfig,
    TinyDatasetConfig,
    TinyPairsConfig,
)


@rule("holdout-has-documents")
def holdout_has_documents(run: Recipe) -> Iterator[RuleViolation]:
    """Require documents from which validation.holdout can hold some out.

    Text, conversations and pairs are split by their documents, token files and images are not. The
    held-out documents are what validation.dataset names otherwise: use one of the two, and
    validation.further for more data.
    """
    size = run.validation.holdout
    if size is None:
        return
    if isinstance(run.validation.dataset, DatasetConfig):
        yield RuleViolation(
            "validation.holdout holds out documents to validate on, but validation.dataset is set",
            (HOLDOUT, ("validation", "dataset")),
            hint="remove one of them, or move the dataset to validation.further",
        )
    if isinstance(run.training.dataset, MixtureDatasetConfig) and size >= 1:
        yield RuleViolation(
            f"a mixture holds out a share of its documents, not {size:g} of them",
            (HOLDOUT, TRAINING_DATASET),
            hint="set validation.holdout to a share, such as 0.01",
        )
    if run.training.dataset.is_streamed:
        yield from find_stream_holdout_violations(run, size)
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, DOCUMENT_DATASETS):
            yield RuleViolation(
                f"dataset '{dataset.name}' has no documents that could be held out",
                (HOLDOUT, place),
                hint="set validation.dataset instead, or train on text or conversations",
            )


def find_stream_holdout_violations(run: Recipe, size: float) -> Iterator[RuleViolation]:
    """Yield what keeps a stream from holding documents out: nobody knows how many it has."""
    if size >= 1 and not isinstance(run.training.dataset, MixtureDatasetConfig):
        yield RuleViolation(
            f"a stream holds out a share of its documents, not {size:g} of them",
            (HOLDOUT, TRAINING_DATASET),
            hint="set validation.holdout to a share, such as 0.001",
        )
    if run.validation.enable and run.validation.steps is None:
        yield RuleViolation(
            "validation on held-out documents of a stream would read all of it: validation.steps "
            "is null",
            (("validation", "steps"), HOLDOUT),
            hint="set validation.steps, for example to 50",
        )


@rule("holdout-column-exists", level="environment")
def holdout_column_exists(run: Recipe) -> Iterator[RuleViolation]:
    """Require the column that validation.holdout_by names.

    Every source of the training data needs it, because its value decides which documents are held
    out. The first of the files is checked.
    """
    column = run.validation.holdout_by
    if run.validation.holdout is None or column is None:
        return
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, FilesConfig | ChatDatasetConfig | RepliesConfig):
            continue
        try:
            if dataset.path is not None and matches_existing_path(dataset.path):
                file = resolve_data_files(dataset.path)[0]
                check_columns(
                    find_file_columns(file) or [column], {column: HOLDOUT_BY}, f"'{file}'"
                )
        except ProblemsFound as error:
            for problem in error.problems:
                if problem.path == HOLDOUT_BY:
                    yield RuleViolation(
                        problem.message, (HOLDOUT_BY, place), hint=problem.hint, code="data"
                    )


@rule("holdout-has-enough-files", level="environment")
def holdout_has_enough_files(run: Recipe) -> Iterator[RuleViolation]:
    """Require enough documents for both sides of validation.holdout.

    A .txt file is one document, whatever its length, so that nothing can be held out of a single
    one. Write a jsonl file with one text per line, or name more files. Documents of other files are
    counted when they are tokenized.
    """
    if run.validation.holdout is None:
        return
    needed = MIN_DOCUMENTS
    if not isinstance(run.training.dataset, MixtureDatasetConfig):
        # a source of a mixture may lie on the side that is trained on
        needed *= 2
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, FilesConfig) or not matches_existing_path(dataset.path):
            continue
        try:
            files = resolve_data_files(dataset.path)
        except ProblemsFound:
            continue  # the run names what is wrong with the path
        if len(files) < needed and all(get_data_suffix(file) == ".txt" for file in files):
            yield RuleViolation(
                f"'{dataset.path}' has {pluralize(len(files), 'document')}, but validation.holdout "
                f"needs {needed}: a .txt file is one document",
                (HOLDOUT, (*place, "path")),
                hint=ONE_DOCUMENT_HINT,
                code="data",
            )


def list_training_sources(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Return the training dataset, or the sources of a mixture, with their paths."""
    return [
        (place, config)
        for place, config in iter_nested_configs(run.training.dataset, TRAINING_DATASET)
        if isinstance(config, DatasetConfig) and not isinstance(config, MixtureDatasetConfig)
    ]
