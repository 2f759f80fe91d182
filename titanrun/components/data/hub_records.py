"""Records of a dataset on the Hugging Face Hub, imported only to build an index."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import datasets

from titanrun.components.data.jsonl_reader import silence_datasets_library
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.components.data.spec.hub_advice import (
    advise_again,
    advise_dataset,
    is_refused_offline,
    is_unreachable,
)
from titanrun.components.data.spec.hub_source import HubSource
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

OPEN_HINT = "check repo, subset, split and revision; HF_TOKEN opens gated datasets"


def iter_hub_records(source: HubSource) -> Iterator[LocatedRecord]:
    """Yield the records of one split in order.

    They are fetched as a whole into the Hub's cache, or one by one as they are read.
    HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN are read by the library.

    Raises:
        ProblemsFound: A data problem with the Hub's answer.
    """
    place = f"{source.repo} {source.split}"
    with silence_datasets_library():
        records = iter(load_hub_split(source))
        number = 0
        while True:
            try:
                record = next(records, None)
            # the library raises errors of its readers, its HTTP client and the file system
            except Exception as error:
                hint = "start again: complete files are not fetched again"
                raise problem_error(
                    "data",
                    f"reading {place} failed after {pluralize(number, 'record')}: "
                    f"{get_first_error_line(error)}",
                    path=("repo",),
                    hint=hint,
                ) from error
            if record is None:
                return
            number += 1
            yield f"{place} record {number}", record


def load_hub_split(source: HubSource) -> Any:
    """Return one split as an object of the datasets library."""
    builder = open_hub_builder(source)
    # the library raises errors of its readers, its HTTP client and the file system
    try:
        if source.streaming:
            return builder.as_streaming_dataset(split=source.split)
        builder.download_and_prepare()
        return builder.as_dataset(split=source.split)
    except Exception as error:
        raise cannot_open_hub_error(source, error) from error


def open_hub_builder(source: HubSource) -> Any:
    """Return the builder of the datasets library for a dataset at its commit.

    Raises:
        ProblemsFound: A data problem if the Hub does not have it, or does not answer.
    """
    try:
        builder = datasets.load_dataset_builder(
            source.repo, source.subset, revision=source.revision
        )
    # see above
    except Exception as error:
        raise cannot_open_hub_error(source, error) from error
    if builder.hash == source.revision:
        return builder
    # offline, or if the Hub does not know a commit, the library uses the commit that it fetched
    # last
    raise problem_error(
        "data",
        f"'{source.repo}' cannot be opened at {source.revision[:12]}: the local cache holds "
        f"{builder.hash[:12]}",
        path=("revision",),
        hint=OPEN_HINT,
    )


def open_folder_builder(source: HubSource, folder: Path, files: Mapping[str, Any]) -> Any:
    """Return the builder for what a folder holds of a dataset.

    `files` may have the `data_files` or the `data_dir` of the subset.

    Raises:
        ProblemsFound: A data problem if the folder does not have them.
    """
    try:
        return datasets.load_dataset_builder(str(folder), source.subset, **files)
    # see above
    except Exception as error:
        raise cannot_open_hub_error(source, error) from error


def cannot_open_hub_error(source: HubSource, error: Exception) -> ProblemsFound:
    """Build the problem of a dataset that the library cannot open."""
    return problem_error(
        "data",
        f"'{source.repo}' cannot be opened at {source.revision[:12]}: "
        f"{get_first_error_line(error)}",
        path=("repo",),
        hint=advise_dataset(
            source.repo, source.revision, advise_again(is_offline=is_refused_offline(error))
        )
        if is_unreachable(error)
        else OPEN_HINT,
    )


def get_first_error_line(error: BaseException | None) -> str:
    """Return the first line of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
