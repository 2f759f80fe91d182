"""The front door of reading: a file, a text or an override becomes a tree in which everything knows its place."""

import os
import stat
from importlib import import_module
from pathlib import Path
from typing import Literal

from titanrun.config.encoding import check_characters, decode
from titanrun.config.limits import MAX_BYTES, too_large
from titanrun.config.problems import Origin, ProblemsFound, SourceText, fail
from titanrun.config.suggest import closest, listing
from titanrun.config.tree import Node
from titanrun.config.yaml_reader import read_yaml, read_yaml_value

FORMATS: dict[str, Literal["yaml", "toml"]] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
# by name: tomli and its patterns take as long to import as a small recipe to read, and most recipes are YAML
TOML_READER = "titanrun.config.toml_reader"
MANY_FILES = 1000


def read_source(path: str, *, included_from: Origin | None = None, name: str | None = None) -> Node:
    """The mapping in the YAML or TOML file at `path`, whose suffix tells which.

    Args:
        path: As the user gave it.
        included_from: Where another file names this one.
        name: How messages call the file; its path by default.

    Raises ProblemsFound with everything that is wrong with the file.
    """
    name = path if name is None else name
    data = read_bytes(path, name, included_from)
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise fail(
            "file",
            f"{name} is neither YAML nor TOML by its name",
            origin=included_from,
            help="name it .yaml, .yml or .toml",
        )
    if len(data) > MAX_BYTES:
        raise too_large(Origin(SourceText(name, "", included_from=included_from), 1, 1, 1))
    return read_text(decode(data, name, included_from=included_from), FORMATS[suffix])


def read_text(source: SourceText, format: Literal["yaml", "toml"]) -> Node:
    """The mapping in a YAML or TOML text. Raises ProblemsFound with everything that is wrong with it."""
    check_text(source)
    root: Node = (
        read_yaml(source) if format == "yaml" else import_module(TOML_READER).read_toml(source)
    )
    return root


def read_value(source: SourceText, *, start: int = 0) -> Node:
    """The YAML value that begins at index `start` of an override and reaches to its end; columns are those of the whole override.

    No value at all is null, marked at what stands before `start`. Raises ProblemsFound.
    """
    check_text(source)
    return read_yaml_value(source, start)


def check_text(source: SourceText) -> None:
    """Raises ProblemsFound for texts that are too long or hold characters that nobody can see."""
    if len(source.text) > MAX_BYTES:
        raise too_large(
            Origin(SourceText(source.name, "", source.kind, source.included_from), 1, 1, 1)
        )
    check_characters(source)


def read_bytes(path: str, name: str, included_from: Origin | None) -> bytes:
    """The bytes of a file, one more than the limit at most."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            kind = "a directory" if Path(path).is_dir() else "not a regular file"
            raise fail("file", f"{name} is {kind}", origin=included_from)
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise missing(path, name, included_from) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise fail("file", f"cannot read {name}: {reason}", origin=included_from) from None
    except ValueError:  # a NUL character
        raise fail("file", f"{name!r} cannot be the path of a file", origin=included_from) from None


def missing(path: str, name: str, included_from: Origin | None) -> ProblemsFound:
    """The problem of a file that is not there, with the names in its folder that look like it."""
    folder = Path(path).parent
    if not folder.is_dir():
        return fail(
            "file",
            f"there is no file {name}",
            origin=included_from,
            help=f"there is no folder {folder} either",
        )
    stem, names = Path(path).stem, {Path(name).stem: name for name in readable_names(folder)}
    near = closest(stem, names)
    alike = [near] if near else [other for other in names if stem in other]
    help = (
        "did you mean " + listing((str(folder / names[other]) for other in alike), most=3)
        if alike
        else None
    )
    if not alike and included_from is None and Path(path).suffix.lower() not in FORMATS:
        help = "recipes end in .yaml, .yml or .toml; a change of one is written path=value, in one word"
    return fail("file", f"there is no file {name}", origin=included_from, help=help)


def readable_names(folder: Path) -> list[str]:
    """The names of the YAML and TOML files in a folder; nothing where it is too large to look through, or closed."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MANY_FILES), strict=False)]
    except OSError:
        return []
    return sorted(name for name in names if Path(name).suffix.lower() in FORMATS)
