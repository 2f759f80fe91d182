"""Rules about where records are: in files or on the Hub."""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from titanrun.components.data.config import HubConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.components.data.spec.file_columns import RequiredColumns, get_required_columns
from titanrun.components.data.spec.remote_path import check_remote_path, is_remote_path
from titanrun.components.data.stream_config import StreamFields
from titanrun.config.base import ComponentConfig, iter_nested_configs
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.chat import (
    ConversationDataset,
    get_conversation_columns,
    parse_conversations,
)
from titanrun.recipe.rules.data import get_all_datasets
from titanrun.recipe.rules.registry import RuleViolation, rule

HUB_FIELDS = ("subset", "revision", "split")
READER_MODULE = "titanrun.components.data.remote_check"
READER_PACKAGES = ("numpy", "pyarrow", "datasets", "huggingface_hub", "fsspec")
UNREACHABLE = "source-unreachable"
WAITING_HINT = "a run tries it for training.dataloader.retry_timeout before it ends"
DEFAULT_SPLIT = RecordSourceFields.model_fields["split"].default


@rule("one-place-of-data")
def one_place_of_data(run: Recipe) -> Iterator[RuleViolation]:
    """Require files or a dataset on the Hub for each dataset, not both.

    Set path to files, or repo to a dataset on the Hub. subset, split and revision belong to repo.
    """
    for place, config in iter_nested_configs(run):
        if isinstance(config, RecordSourceFields):
            yield from check_record_source(config, place)


@rule("hub-data-has-a-commit", level="environment")
def hub_data_has_a_commit(run: Recipe) -> Iterator[RuleViolation]:
    """Require a commit for each dataset on the Hub, written or recorded.

    A branch may change while a run is stopped. Without a revision, `titanrun train`, `titanrun plan
    --fetch` and `titanrun download RECIPE` ask the Hub which commit main is and record it.
    """
    for place, config in iter_nested_configs(run):
        if not isinstance(config, RecordSourceFields | HubConfig):
            continue
        if config.repo is not None and config.revision is None:
            yield RuleViolation(
                f"the commit of '{config.repo}' is not known here",
                ((*place, "repo"), (*place, "revision")),
                hint="titanrun train and titanrun download RECIPE ask the Hub for it, titanrun "
                "data pin RECIPE --write writes it into the recipe",
                code="file",
            )


@rule("remote-path-needs-a-stream")
def remote_path_needs_a_stream(run: Recipe) -> Iterator[RuleViolation]:
    """Refuse addresses of files that would be tokenized before the first step.

    Only streams read files that are not on this machine. Set streaming: true, or download them.
    """
    for place, dataset in get_all_datasets(run):
        path = getattr(dataset, "path", None)
        if path is None or not is_remote_path(path) or dataset.is_streamed:
            continue
        can_stream = isinstance(dataset, StreamFields)
        yield RuleViolation(
            f"'{dataset.name}' reads files on this machine, but path is an address",
            ((*place, "path"), (*place, "streaming")),
            hint="set streaming: true, or download the files" if can_stream else "download them",
        )


@rule("remote-path-readable", level="environment")
def remote_path_readable(run: Recipe) -> Iterator[RuleViolation]:
    """Require addresses of streams that can be read here.

    The scheme is known, what reads it is installed, no credentials are written in it (they belong
    in the environment), and the first record of the first file has the columns that the dataset
    reads. A server that does not answer is a warning: it may once the run starts, which waits for
    training.dataloader.retry_timeout.
    """
    for place, dataset in get_all_datasets(run):
        path = getattr(dataset, "path", None)
        if path is None or not is_remote_path(path) or not dataset.is_streamed:
            continue
        try:
            check_remote_path(path)
            if has_remote_readers():
                check_first_remote_record(dataset, path)
        except ProblemsFound as error:
            for problem in error.problems:
                may_pass = problem.rule == UNREACHABLE
                yield RuleViolation(
                    problem.message,
                    ((*place, *problem.path), (*place, "path")),
                    hint=WAITING_HINT if may_pass else problem.hint,
                    code="data",
                    severity="warning" if may_pass else "error",
                )


def has_remote_readers() -> bool:
    """Return whether the packages are here that read remote files; only titanrun[train] has all."""
    return all(find_spec(name) is not None for name in READER_PACKAGES)


def check_first_remote_record(dataset: Any, path: str) -> None:
    """Raise a data problem if the first file at an address cannot be read, or lacks a column."""
    required: RequiredColumns
    if isinstance(dataset, ConversationDataset):
        required = {column: (field,) for column, field in get_conversation_columns(dataset)}
    else:
        required = get_required_columns(dataset)
    # the reader is on the execution side, and few recipes need it
    read = import_module(READER_MODULE).read_first_remote_record
    found = read(dataset, path, required)
    if found is not None and isinstance(dataset, ConversationDataset):
        location, record = found
        parse_conversations(dataset, record, location)


def check_record_source(config: RecordSourceFields, place: DataPath) -> Iterator[RuleViolation]:
    """Check that a dataset has one source of records, with all of its fields."""
    path, repo = (*place, "path"), (*place, "repo")
    name = config.name if isinstance(config, ComponentConfig) else ""
    if config.path is not None and config.repo is not None:
        yield RuleViolation(
            f"'{name}' has both path and repo",
            (repo, path),
            hint="remove one of them: records are in files or on the Hub",
        )
    elif config.path is None and config.repo is None:
        yield RuleViolation(
            f"'{name}' has neither path nor repo",
            (place,),
            hint="set path to files, or repo to a dataset on the Hub",
        )
    elif config.repo is None:
        for field in HUB_FIELDS:
            if getattr(config, field) not in (None, DEFAULT_SPLIT):
                yield RuleViolation(
                    f"{field} belongs to a dataset on the Hub, but '{name}' reads files",
                    ((*place, field), path),
                    hint="remove it, or set repo instead of path",
                )
