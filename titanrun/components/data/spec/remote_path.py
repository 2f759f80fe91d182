"""Addresses of data files that are not on this machine. Torch-free, and without network."""

import re

from titanrun.components.checkpoints.spec.storage_path import (
    CREDENTIALS,
    CREDENTIALS_HINT,
    find_missing_extra,
    is_known_store,
    is_storage_path,
)
from titanrun.components.data.validators_config import COMMIT_PATTERN
from titanrun.config.problems import ProblemsFound, problem_error

LOCAL_SCHEMES = ("file", "local")
WEB_SCHEMES = ("https", "http")
HUB_SCHEME = "hf"
HUB_PATH = re.compile(r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)@(?P<revision>[^/]+)/(?P<name>.+)")
GLOB_CHARACTERS = re.compile(r"[*\[]")


def is_remote_path(path: str) -> bool:
    """Return whether a path is the address of files that are not on this machine."""
    return is_storage_path(path) and get_scheme(path) not in LOCAL_SCHEMES


def get_scheme(path: str) -> str:
    """Return the scheme of an address, in lower case."""
    return path.partition(":")[0].lower()


def has_glob(path: str) -> bool:
    """Return whether an address may name several files."""
    return GLOB_CHARACTERS.search(path) is not None


def check_remote_path(path: str) -> None:
    """Raise a problem if files at an address cannot be read here, whatever the network says."""
    scheme = get_scheme(path)
    if "://" not in path or CREDENTIALS.match(path):
        raise problem_error(
            "data", f"'{path}' is not a valid address", path=("path",), hint=CREDENTIALS_HINT
        )
    if scheme == HUB_SCHEME:
        check_hub_path(path)
    elif scheme in WEB_SCHEMES:
        return
    elif (extra := find_missing_extra(path)) is not None:
        raise problem_error(
            "data",
            f"'{path}' needs a package that is not installed",
            path=("path",),
            hint=f'pip install "titanrun[{extra}]"',
        )
    elif not is_known_store(path):
        raise unknown_scheme_error(path)


def check_hub_path(path: str) -> None:
    """Raise a problem unless an address names files of a dataset on the Hub at one commit."""
    match = HUB_PATH.fullmatch(path)
    if match is None or not COMMIT_PATTERN.fullmatch(match["revision"]):
        raise problem_error(
            "data",
            f"'{path}' does not name files of a dataset on the Hub at a commit",
            path=("path",),
            hint="write hf://datasets/OWNER/NAME@COMMIT/FILES, with all 40 digits of the commit",
        )


def unknown_scheme_error(path: str) -> ProblemsFound:
    """Build the problem of an address that nothing here can read."""
    return problem_error(
        "data",
        f"'{path}' has an unknown scheme",
        path=("path",),
        hint="use https, hf, s3, gs or az, or a path on this machine",
    )
