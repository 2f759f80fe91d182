"""Records of a dataset on the Hugging Face Hub; imported only when an index must be built."""

from collections.abc import Iterator
from typing import Any, Protocol

import datasets

from titanrun.components.data.reading import quiet
from titanrun.components.data.records import Placed
from titanrun.config.problems import fail


class OnHub(Protocol):
    """Where records are on the Hub, as a dataset's config says it."""

    repo: str
    subset: str | None
    split: str
    revision: str
    streaming: bool


def hub_records(config: OnHub) -> Iterator[Placed]:
    """The records of one split in their order: fetched as a whole into the Hub's own cache, or one after the other as they are read.

    Raises a data problem that says what the Hub answered. HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN are the library's to read.
    """
    place = f"{config.repo} {config.split}"
    with quiet():
        records = iter(opened(config))
        number = 0
        while True:
            try:
                record = next(records, None)
            # the library raises what its readers, its HTTP client and the file system raise
            except Exception as error:
                help = "start again: what is complete is not fetched again"
                raise fail(
                    "data",
                    f"{place} breaks off after {number} records: {first_line(error)}",
                    path=("repo",),
                    help=help,
                ) from error
            if record is None:
                return
            number += 1
            yield f"{place} record {number}", record


def opened(config: OnHub) -> Any:
    """One split as the library gives it."""
    help = "check repo, subset, split and revision; HF_TOKEN opens gated datasets, HF_HUB_OFFLINE=1 takes what was fetched before"
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
        raise fail("data", f"{at}: {first_line(error)}", path=("repo",), help=help) from error
    # without the Hub, or where the Hub does not know a commit, the library takes whichever it fetched last
    raise fail(
        "data",
        f"{at}: what was fetched before is {builder.hash[:12]}",
        path=("revision",),
        help=help,
    )


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
