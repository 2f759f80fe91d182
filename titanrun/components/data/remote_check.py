"""First record of a stream of remote files, asked for before a run."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.lane_records import RecordFile
from titanrun.components.data.remote_plan import find_first_remote_file
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.spec.file_columns import RequiredColumns, check_columns
from titanrun.components.data.stream_config import StreamFields
from titanrun.components.data.stream_sources import SourceFiles
from titanrun.distributed.rank_env import is_first_process


def read_first_remote_record(
    config: StreamFields, path: str, required: RequiredColumns
) -> tuple[str, Mapping[str, Any]] | None:
    """Return location and content of the first record at an address, None if there is none.

    Only the first file is opened, and each request is tried once. Nothing is asked for, and None
    returned, on other ranks than the first: servers limit the number of requests.

    Args:
        config: Config of the stream.
        path: Address of its files.
        required: Columns that it reads, with the fields that name them.

    Raises:
        ProblemsFound: A data problem if a request fails, or the file lacks a column.
    """
    if not is_first_process():
        return None
    once = RetryPolicy(0)
    file = find_first_remote_file(path, config.stream_suffixes, once)
    # a conversation may have further columns, so that all are read
    columns = required if isinstance(config, DocumentsConfig) else None
    records = RecordFile(SourceFiles(once), file, columns)
    with closing(records.iter_from(0, 0)) as found:
        first = next(found, None)
    if first is None or getattr(config, "bad_records", None) == "skip":
        return None
    place, record = records.parse(first)
    check_columns(record, required, place)
    return place, record
