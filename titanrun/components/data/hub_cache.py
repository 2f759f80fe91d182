"""Files of datasets that the Hub's local cache holds, for streams where HF_HUB_OFFLINE is set."""

import io
import logging
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from huggingface_hub import (
    DatasetCard,
    constants,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import LocalEntryNotFoundError

from titanrun.components.checkpoints.spec.storage_path import open_filesystem
from titanrun.components.data import hub_records
from titanrun.components.data.lane_plan import PlanFile
from titanrun.components.data.local_stream_files import CountedFile
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.spec.hub_advice import advise_again
from titanrun.components.data.spec.hub_source import HubSource
from titanrun.components.data.spec.remote_path import HUB_PATH, has_glob
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error

DATASET, CARD = "dataset", "README.md"
log = logging.getLogger(__name__)


def is_offline() -> bool:
    """Return whether the Hub's library must not use the network."""
    return bool(constants.HF_HUB_OFFLINE)


def find_snapshot(repo: str, revision: str, field: str) -> Path:
    """Return the folder of the files that the cache holds of a dataset at a commit.

    Raises:
        ProblemsFound: A data problem with `field` if there is none.
    """
    try:
        folder = snapshot_download(
            repo, repo_type=DATASET, revision=revision, local_files_only=True
        )
    except LocalEntryNotFoundError:
        raise not_cached_error(repo, repo, revision, field) from None
    return Path(folder)


def not_cached_error(name: str, repo: str, revision: str, field: str) -> ProblemsFound:
    """Build the problem of a dataset that the cache does not hold."""
    return problem_error(
        "data",
        f"'{name}' is streamed from the Hub, but HF_HUB_OFFLINE is set, and the Hub's cache does "
        f"not hold it at {revision[:12]}",
        path=(field,),
        hint=f"{advise_again(is_offline=True)}; without a network, run hf download {repo} "
        f"--repo-type dataset --revision {revision} on a machine that has one, and copy its cache "
        "(~/.cache/huggingface/hub) here",
    )


def list_cached_paths(path: str) -> list[PlanFile]:
    """Return the cached files at an address of a file, a folder or a glob.

    Raises:
        ProblemsFound: A data problem if the cache does not hold the dataset.
    """
    match = HUB_PATH.fullmatch(path)
    assert match is not None, "check_remote_path checks this"
    snapshot = find_snapshot(match["repo"], match["revision"], "path")
    place, store = snapshot / match["name"], open_filesystem("file")
    if has_glob(match["name"]):
        found = store.glob(str(place))
    else:
        found = [str(place)] if place.is_file() else store.find(str(place))
    files = [Path(file) for file in found if Path(file).is_file()]
    return describe_cached_files(files, snapshot, match["repo"], match["revision"])


def open_cached_builder(source: HubSource) -> Any:
    """Return the builder of the datasets library for the files that the cache holds of a dataset.

    Raises:
        ProblemsFound: A data problem if the cache does not hold it.
    """
    snapshot = find_snapshot(source.repo, source.revision, "repo")
    # the library would look at the files of the first subset, which need not be in the cache
    subset = find_subset(snapshot / CARD, source.subset)
    files = {key: subset[key] for key in ("data_files", "data_dir") if key in subset}
    return hub_records.open_folder_builder(source, snapshot, files)


def find_subset(card: Path, name: str | None) -> Mapping[str, Any]:
    """Return what the card of a dataset says about a subset: nothing where it has none."""
    configs = DatasetCard.load(card).data.to_dict().get("configs") if card.is_file() else None
    found = [dict(config) for config in configs or ()]
    if name is None and len(found) > 1:
        found = [one for one in found if one.get("default") or one["config_name"] == "default"]
    elif name is not None:
        found = [one for one in found if one["config_name"] == name]
    return found[0] if found else {}


def describe_cached_split(locations: Sequence[str], source: HubSource) -> list[PlanFile]:
    """Return the files of a split that `open_cached_builder` found."""
    snapshot = find_snapshot(source.repo, source.revision, "repo")
    files = [Path(location) for location in locations]
    return describe_cached_files(files, snapshot, source.repo, source.revision)


def describe_cached_files(
    files: list[Path], snapshot: Path, repo: str, revision: str
) -> list[PlanFile]:
    """Return files of a snapshot as the Hub describes them, and log their number.

    The cache names contents by the hash that the Hub tells, which is their version in a plan too.
    """
    described = []
    for file in files:
        name = f"datasets/{repo}@{revision}/{file.relative_to(snapshot).as_posix()}"
        version = posixpath.basename(str(file.resolve())) if file.is_symlink() else ""
        described.append(PlanFile(name, file.stat().st_size, version, f"hf://{name}"))
    log.warning(
        "HF_HUB_OFFLINE is set: streaming the %s of '%s' that the Hub's cache holds",
        pluralize(len(files), "file"),
        repo,
    )
    return described


def open_cached_file(file: PlanFile, counts: ReadCounts) -> BinaryIO:
    """Open a file of a plan in the cache.

    Raises:
        ProblemsFound: A data problem if the cache does not hold it as it is in the plan.
    """
    match = HUB_PATH.fullmatch(file.location)
    assert match is not None, "the plan holds addresses with commits"
    path = try_to_load_from_cache(
        match["repo"], match["name"], revision=match["revision"], repo_type=DATASET
    )
    if not isinstance(path, str) or Path(path).stat().st_size != file.size:
        raise not_cached_error(file.location, match["repo"], match["revision"], "path")
    counted = CountedFile(path)
    counted.counts = counts
    return io.BufferedReader(counted)
