"""Where the files of a stream are: on this machine, at an address, or on the Hub."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from titanrun.components.data.http_source import HttpSource
from titanrun.components.data.lane_plan import PlanFile, StreamPlan
from titanrun.components.data.local_stream_files import LocalStreamFiles, plan_local_files
from titanrun.components.data.record_source import find_hub_source
from titanrun.components.data.remote_file import RangeSource, RemoteFile
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.spec.remote_path import (
    HUB_PATH,
    HUB_SCHEME,
    WEB_SCHEMES,
    get_scheme,
    is_remote_path,
)
from titanrun.components.data.store_source import StoreSource
from titanrun.config.lazy_module import LazyModule

if TYPE_CHECKING:
    import huggingface_hub

    from titanrun.components.data import hub_cache, remote_plan
else:
    # imported only for remote files: the datasets library takes a second to import
    remote_plan = LazyModule("titanrun.components.data.remote_plan")
    hub_cache = LazyModule("titanrun.components.data.hub_cache")
    huggingface_hub = LazyModule("huggingface_hub")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """Files of a stream, wherever they are.

    Requests to remote ones that fail are repeated for as long as `retries` says.
    """

    retries: RetryPolicy

    def open(self, file: PlanFile) -> BinaryIO:
        """Open a file for reading from any place.

        Raises:
            ProblemsFound: A data problem if it is not what the plan says.
        """
        if not is_remote_path(file.location):
            return LocalStreamFiles(self.retries.counts).open(file)
        if get_scheme(file.location) == HUB_SCHEME and hub_cache.is_offline():
            return hub_cache.open_cached_file(file, self.retries.counts)
        opened = RemoteFile(
            build_range_source(file),
            size=file.size,
            name=f"'{file.location}'",
            retries=self.retries,
        )
        return cast(BinaryIO, opened)


def build_range_source(file: PlanFile) -> RangeSource:
    """Return where the bytes of a remote file are requested."""
    scheme = get_scheme(file.location)
    if scheme in WEB_SCHEMES:
        return HttpSource(file.location, size=file.size, version=file.version)
    if scheme != HUB_SCHEME:
        return StoreSource(file.location, size=file.size, version=file.version)
    match = HUB_PATH.fullmatch(file.location)
    assert match is not None, "the plan holds addresses with commits"
    url = huggingface_hub.hf_hub_url(
        match["repo"], match["name"], repo_type="dataset", revision=match["revision"]
    )
    # a commit never changes: its files have no version to compare
    return HttpSource(url, size=file.size, token=huggingface_hub.get_token())


def plan_stream(config: Any, retries: RetryPolicy) -> StreamPlan:
    """Return the files of a stream, in the order in which they are read without shuffling.

    Raises:
        ProblemsFound: A data problem if there are none, or they cannot be listed.
    """
    hub = find_hub_source(config)
    if hub is not None:
        return remote_plan.plan_hub_files(hub, config.stream_suffixes, retries)
    path: str = config.path
    if is_remote_path(path):
        return remote_plan.plan_remote_files(path, config.stream_suffixes, retries)
    return plan_local_files(path, config.stream_suffixes)


def get_source_name(config: Any) -> str:
    """Return the name of a dataset's records for messages."""
    hub = find_hub_source(config)
    name: str = config.path if hub is None else hub.name
    return name
