"""Texts that can be read only once: standard input, and the files of `<(command)`.

A recipe is read several times, once for each of its stages for example, so they are kept.
"""

import re
from os.path import realpath
from pathlib import Path

from titanrun.config.limits import MAX_BYTES

# the shell names an open pipe so; a pipe in a folder would block until someone writes to it
OPEN_STREAM = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
# a table header, or the first key of a TOML text; neither begins a YAML mapping
TOML_START = re.compile(rb"(?:\s|#[^\n]*\n)*(?:\[[^\n]*\]\s*(?:#[^\n]*)?\n|[\w.\"'-]+[ \t]*=)")

provided_texts: dict[str, bytes] = {}
"""Texts that stand for the file of their name, whatever the disk holds."""
read_streams: dict[tuple[str, int], bytes] = {}
"""What was read from a stream, by its path and inode."""


def provide_text(name: str, data: bytes) -> None:
    """Let `data` be what the file `name` holds from here on."""
    provided_texts[name] = data


def withdraw_text(name: str) -> None:
    """Let the file `name` hold again what the disk holds."""
    provided_texts.pop(name, None)


def find_provided_text(path: str) -> bytes | None:
    """Return the text that stands for the file at `path`, under this name or without links."""
    if not provided_texts:
        return None
    found = provided_texts.get(path)
    return provided_texts.get(realpath(path)) if found is None else found


def is_provided(path: str) -> bool:
    """Return whether a text stands for the file at `path`."""
    return find_provided_text(path) is not None


def is_open_stream(path: str) -> bool:
    """Return whether `path` is what a shell writes for `<(command)`, or standard input."""
    return OPEN_STREAM.fullmatch(path) is not None


def is_stream(path: str) -> bool:
    """Return whether `path` has a text that can be read only once, and that is not a file."""
    return is_provided(path) or is_open_stream(path)


def find_stream_bytes(path: str) -> bytes | None:
    """Return the text of a stream, at most one byte more than the limit, or None for other paths.

    Raises:
        OSError: The stream cannot be read.
    """
    provided = find_provided_text(path)
    if provided is not None:
        return provided
    if not is_open_stream(path):
        return None
    key = (path, Path(path).stat().st_ino)
    if key not in read_streams:
        with Path(path).open("rb") as stream:
            read_streams[key] = stream.read(MAX_BYTES + 1)
    return read_streams[key]


def looks_like_toml(data: bytes) -> bool:
    """Return whether a text without a suffix to tell its format is TOML."""
    return TOML_START.match(data) is not None
