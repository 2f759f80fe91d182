"""Records of a dataset on the Hugging Face Hub, imported only to build an index."""

from collections.abc import Iterator
from typing import Any, Protocol

import datasets

from titanrun.components.data.jsonl_reader import silence_datasets_library
from titanrun.components.data.record_readers import LocatedRecord
from titanrun.config.problems import problem_error


class HubSource(Protocol):
    """Location of records on the Hub, as in the config of a dataset."""

    @property
    def repo(self) -> str:
        """Dataset on the Hub: OWNER/NAME."""

    @property
    def subset(self) -> str | None:
        """Subset of the dataset, None if it has only one."""

    @property
    def split(self) -> str:
        """Split of the dataset."""

    @property
    def revision(self) -> str:
        """Commit of the dataset."""

    @property
    def streaming(self) -> bool:
        """Whether to fetch records as they are read."""


def iter_hub_records(config: HubSource) -> Iterator[LocatedRecord]:
    """Yield the records of one split in order.

    They are fetched as a whole into the Hub's cache, or one by one as they are read.
    HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN are read by the library.

    Raises:
        ProblemsFound: A data problem with the Hub's answer.
    """
    place = f"{config.repo} {config.split}"
    with silence_datasets_library():
        records = iter(load_hub_split(config))
        number = 0
        while True:
            try:
                record = next(records, None)
            # the library raises errors of its readers, its HTTP client and the file system
            except Exception as error:
                hint = "start again: complete files are not fetched again"
                raise problem_error(
                    "data",
                    f"reading {place} failed after {number} records: {get_first_error_line(error)}",
                    path=("repo",),
                    hint=hint,
                ) from error
            if record is None:
                return
            number += 1
            yield f"{place} record {number}", record


def load_hub_split(config: HubSource) -> Any:
    """Return one split as an object of the datasets library."""
    hint = (
        "check repo, subset, split and revision; HF_TOKEN opens gated datasets, "
        "HF_HUB_OFFLINE=1 uses the local cache"
    )
    at = f"'{config.repo}' cannot be opened at {config.revision[:12]}"
    try:
        builder = datasets.load_dataset_builder(
            config.repo, config.subset, revision=config.revision
        )
        if builder.hash == config.revision:
            if config.streaming:
                return builder.as_streaming_dataset(split=config.split)
            builder.download_and_prepare()
            return builder.as_dataset(split=config.split)
    # see above
    except Exception as error:
        raise problem_error(
            "data", f"{at}: {get_first_error_line(error)}", path=("repo",), hint=hint
        ) from error
    # offline, or if the Hub does not know a commit, the library uses the commit that it fetched
    # last
    raise problem_error(
        "data",
        f"{at}: the local cache holds {builder.hash[:12]}",
        path=("revision",),
        hint=hint,
    )


def get_first_error_line(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
