"""Plans of streams of remote files: of web servers, of object stores and of the Hub."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from huggingface_hub import HfFileSystem

from titanrun.components.data import hub_cache, hub_records
from titanrun.components.data.http_source import HttpSource
from titanrun.components.data.hub_requests import limit_hub_requests
from titanrun.components.data.jsonl_reader import silence_datasets_library
from titanrun.components.data.lane_plan import PlanFile, StreamPlan, leave_out_empty_files
from titanrun.components.data.source_faults import RetryPolicy, SourceFault
from titanrun.components.data.spec.data_files import (
    get_data_suffix,
    is_data_path,
    no_readable_files_error,
)
from titanrun.components.data.spec.hub_source import HubSource
from titanrun.components.data.spec.remote_path import (
    HUB_SCHEME,
    WEB_SCHEMES,
    check_remote_path,
    get_scheme,
    has_glob,
    quote_web_address,
)
from titanrun.components.data.store_source import (
    find_object_version,
    list_objects,
    translate_faults,
)
from titanrun.components.data.web_folders import find_web_files
from titanrun.config.problems import ProblemsFound, problem_error

READABLE_BUILDERS = ("json", "parquet", "csv", "arrow")
"""Builders of the datasets library whose files are read here as there."""
NUM_THREADS = 8
"""Threads that ask a web server for the sizes of files."""
CACHE_ADVICE = "set HF_HUB_OFFLINE=1 if the Hub's cache holds its files"


def plan_remote_files(path: str, suffixes: Sequence[str], retries: RetryPolicy) -> StreamPlan:
    """Return the plan of the files at an address, a folder or a glob, sorted by name.

    Raises:
        ProblemsFound: A data problem if nothing readable is found, or the store does not answer.
    """
    check_remote_path(path)
    scheme = get_scheme(path)
    if scheme in WEB_SCHEMES:
        files = list_web_files(path, retries)
    else:
        work = partial(list_hub_paths if scheme == HUB_SCHEME else list_store_files, path)
        files = retries.request(work, name=f"'{path}'")
    readable = [
        file
        for file in sorted(files, key=lambda file: file.name)
        if is_readable_name(file.name, suffixes)
    ]
    if not readable:
        raise no_readable_files_error(path, [Path(file.name) for file in files], suffixes)
    return build_plan(readable)


def find_first_remote_file(path: str, suffixes: Sequence[str], retries: RetryPolicy) -> PlanFile:
    """Return the first file of the plan of an address.

    Of a web server, no other file is asked for: that is one request for each.

    Raises:
        ProblemsFound: A data problem if nothing readable is found, or the store does not answer.
    """
    if get_scheme(path) not in WEB_SCHEMES:
        return plan_remote_files(path, suffixes, retries).files[0]
    check_remote_path(path)
    names = {get_web_file_name(address): address for address in list_web_addresses(path, retries)}
    readable = sorted(name for name in names if is_readable_name(name, suffixes))
    if not readable:
        raise no_readable_files_error(path, [Path(name) for name in names], suffixes)
    return describe_web_file(names[readable[0]], retries=retries)


def plan_hub_files(source: HubSource, suffixes: Sequence[str], retries: RetryPolicy) -> StreamPlan:
    """Return the plan of one split of a dataset on the Hub, in the order of the datasets library.

    Raises:
        ProblemsFound: A data problem if the Hub does not answer, or the files cannot be streamed.
    """
    work = partial(list_split_files, source)
    files = retries.request(work, name=f"'{source.repo}'", path=("repo",), advice=CACHE_ADVICE)
    for file in files:
        if get_data_suffix(Path(file.name)) not in suffixes:
            raise problem_error(
                "data",
                f"'{file.location}' cannot be streamed; streams read {', '.join(suffixes)}",
                path=("repo",),
                hint="set streaming: false",
            )
    return build_plan(files)


def build_plan(files: Sequence[PlanFile]) -> StreamPlan:
    """Return a plan in which files are named below the folder that they share."""
    files = leave_out_empty_files(files)
    folder = posixpath.commonpath([posixpath.dirname(file.name) or "." for file in files])
    return StreamPlan(
        tuple(
            PlanFile(posixpath.relpath(file.name, folder), file.size, file.version, file.location)
            for file in files
        )
    )


def list_web_files(path: str, retries: RetryPolicy) -> list[PlanFile]:
    """Return the files at a web address, with size and version as the server tells them."""
    addresses = list_web_addresses(path, retries)
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(partial(describe_web_file, retries=retries), addresses))


def list_web_addresses(path: str, retries: RetryPolicy) -> list[str]:
    """Return the addresses of the files at a web address, a folder or a glob."""
    web_path = urlsplit(path).path
    is_one = not has_glob(web_path) and not web_path.endswith("/")
    return [quote_web_address(path)] if is_one else find_web_files(path, retries)


def get_web_file_name(address: str) -> str:
    """Return the name of a file of a web server, with its folders."""
    return unquote(urlsplit(address).path).lstrip("/")


def is_readable_name(name: str, suffixes: Sequence[str]) -> bool:
    """Return whether a stream of these suffixes reads a file of this name."""
    return get_data_suffix(Path(name)) in suffixes and is_data_path(Path(name))


def describe_web_file(address: str, *, retries: RetryPolicy) -> PlanFile:
    """Return a file of a web server."""
    answer = retries.request(partial(HttpSource(address).request, 0, 1), name=f"'{address}'")
    return PlanFile(get_web_file_name(address), answer.size, answer.version, address)


def list_store_files(path: str) -> list[PlanFile]:
    """Return the objects at an address of a store."""
    scheme = get_scheme(path)
    return [
        PlanFile(key.lstrip("/"), int(info["size"]), find_object_version(info), f"{scheme}://{key}")
        for key, info in list_objects(path).items()
    ]


def list_hub_paths(path: str) -> list[PlanFile]:
    """Return the files of a dataset on the Hub at an address."""
    if hub_cache.is_offline():
        return hub_cache.list_cached_paths(path)
    with limit_hub_requests():
        found = list_objects(path)
    return [describe_hub_file(info) for info in found.values()]


def list_split_files(source: HubSource) -> list[PlanFile]:
    """Return the files of one split in the order in which the datasets library reads them."""
    is_offline = hub_cache.is_offline()
    open_builder = hub_cache.open_cached_builder if is_offline else hub_records.open_hub_builder
    with silence_datasets_library(), limit_hub_requests():
        try:
            builder = open_builder(source)
        except ProblemsFound as error:
            passing = next(filter(may_pass, iter_causes(error)), None)
            if is_offline or passing is None:
                raise
            reason = hub_records.get_first_error_line(passing)
            raise SourceFault("unreachable", reason) from error
    if not builder.config.data_files:
        raise SourceFault("unreachable", "the Hub does not list its files")
    check_builder(builder, source)
    if source.split not in builder.config.data_files:
        raise problem_error(
            "data",
            f"'{source.repo}' has no split '{source.split}'; it has: "
            f"{', '.join(map(str, builder.config.data_files))}",
            path=("split",),
            hint="name one of them",
        )
    locations = [str(file) for file in builder.config.data_files[source.split]]
    if is_offline:
        return hub_cache.describe_cached_split(locations, source)
    known: dict[str, Mapping[str, Any]] = {}
    with limit_hub_requests(), translate_faults(f"hf://datasets/{source.repo}"):
        store: Any = HfFileSystem()
        for folder in dict.fromkeys(posixpath.dirname(location) for location in locations):
            known |= {f"hf://{info['name']}": info for info in store.ls(folder, detail=True)}
    return [describe_hub_file(known[location]) for location in locations]


def check_builder(builder: Any, source: HubSource) -> None:
    """Raise a data problem if files would be read here otherwise than by the datasets library."""
    kind = type(builder).__module__.rpartition(".")[2]
    separator, field = getattr(builder.config, "sep", ","), getattr(builder.config, "field", None)
    if kind in READABLE_BUILDERS and separator in (",", None) and field is None:
        return
    raise problem_error(
        "data",
        f"'{source.repo}' cannot be streamed: it is read as {kind}"
        + (f" with separator {separator!r}" if separator not in (",", None) else "")
        + (f" below the field '{field}'" if field is not None else ""),
        path=("repo",),
        hint="set streaming: false",
    )


def describe_hub_file(info: Mapping[str, Any]) -> PlanFile:
    """Return a file of the Hub. Its version is the hash of its content."""
    large = info.get("lfs") or {}
    version = large.get("sha256") or info.get("blob_id") or ""
    return PlanFile(info["name"], int(info["size"]), version, f"hf://{info['name']}")


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield what an error was raised from or while, back to the first one.

    The datasets library says of a Hub that does not answer that it has no such dataset.
    """
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def may_pass(error: BaseException) -> bool:
    """Return whether the Hub may answer if it is asked again."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 429) or status >= 500
    is_transport = type(error).__module__.partition(".")[0] in ("httpx", "httpx2")
    return is_transport or isinstance(error, ConnectionError | TimeoutError)
