"""Addresses of data files that are not on this machine. Torch-free, and without network."""

import re
from importlib import import_module
from inspect import signature
from urllib.parse import quote, urlsplit, urlunsplit

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
LINK_SAFE = "/%:@!$&'()+,;=~"
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
        check_web_address(path)
    elif (extra := find_missing_extra(path)) is not None:
        raise problem_error(
            "data",
            f"'{path}' needs a package that is not installed",
            path=("path",),
            hint=f'pip install "titanrun[{extra}]"',
        )
    elif not is_known_store(path) or needs_settings(scheme):
        raise unknown_scheme_error(path)


def check_web_address(path: str) -> None:
    """Raise a problem if an address of a web server names no host, or no number as its port."""
    try:
        parts = urlsplit(path)
        is_valid = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise problem_error(
            "data",
            f"'{path}' is not a valid address",
            path=("path",),
            hint="write https://HOST/FOLDER/FILE, or https://HOST:PORT/FOLDER/FILE",
        )


def quote_web_address(path: str) -> str:
    """Return an address with spaces and other letters as servers get them."""
    parts = urlsplit(path)
    return urlunsplit(
        parts._replace(
            path=quote(parts.path, safe=LINK_SAFE), query=quote(parts.query, safe=f"{LINK_SAFE}?")
        )
    )


def needs_settings(scheme: str) -> bool:
    """Return whether fsspec needs more than an address for a store, such as ftp."""
    try:
        store = import_module("fsspec").get_filesystem_class(scheme)
    except ImportError:
        return False  # reading it says which package is missing
    options = list(signature(store.__init__).parameters.values())[1:]
    return any(
        option.default is option.empty and option.kind is option.POSITIONAL_OR_KEYWORD
        for option in options
    )


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
