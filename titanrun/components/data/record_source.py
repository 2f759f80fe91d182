"""Records of a dataset from files or from the Hub, and the index of their tokens."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrun.components.data.config import DatasetConfig, HubConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.spec.hub_source import HubSource
from titanrun.components.data.token_index import (
    IndexSpec,
    TokenIndex,
    open_files_index,
    open_or_build_index,
)
from titanrun.config.lazy_module import LazyModule

if TYPE_CHECKING:
    from titanrun.components.data import hub_records, record_readers
else:
    # imported only to read records: they take more than a second to import
    hub_records = LazyModule("titanrun.components.data.hub_records")
    record_readers = LazyModule("titanrun.components.data.record_readers")


def open_source_index(
    config: RecordSourceFields, spec: IndexSpec, *, suffixes: Sequence[str], cache_folder: Path
) -> TokenIndex:
    """Return the index of the records of a dataset, built if it does not exist.

    The Hub is contacted only to build it: a commit never changes.
    """
    hub = find_hub_source(config)
    if hub is None:
        files = resolve_data_files(config.path or "", suffixes)
        return open_files_index(
            files, source=config.path or "", spec=spec, cache_folder=cache_folder
        )
    return open_or_build_index((), hub.key, source=hub.name, spec=spec, cache_folder=cache_folder)


def iter_source_records(
    config: RecordSourceFields, files: Sequence[Path]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the records of the dataset in order, each with its location.

    Args:
        config: Dataset.
        files: Its files, if it is not on the Hub.
    """
    hub = find_hub_source(config)
    if hub is None:
        yield from record_readers.iter_records(files)
    else:
        yield from hub_records.iter_hub_records(hub)


def find_source_files(config: RecordSourceFields, suffixes: Sequence[str]) -> list[Path]:
    """Return the files of a dataset, none if it is on the Hub."""
    return [] if config.path is None else resolve_data_files(config.path, suffixes)


def find_hub_source(config: DatasetConfig | RecordSourceFields) -> HubSource | None:
    """Return the location of a dataset on the Hub, None if it is in files."""
    if not isinstance(config, RecordSourceFields | HubConfig) or config.repo is None:
        return None
    assert config.revision is not None, "the rule one-place-of-data checks this"
    return HubSource(config.repo, config.subset, config.split, config.revision)
