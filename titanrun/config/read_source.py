"""Reading of a file, text or override into a tree whose nodes know their origins."""

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from titanrun.config.encoding import check_characters, decode_source
from titanrun.config.lazy_module import LazyModule
from titanrun.config.limits import MAX_BYTES, text_too_large_error
from titanrun.config.near_path import find_near_path
from titanrun.config.problems import Origin, ProblemsFound, SourceText, problem_error
from titanrun.config.source_streams import find_stream_bytes, is_stream, looks_like_toml
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.config.tree import Node
from titanrun.config.yaml_reader import read_yaml, read_yaml_value

if TYPE_CHECKING:
    from titanrun.config import toml_reader
else:
    # importing tomli takes as long as reading a small recipe, and most recipes are YAML
    toml_reader = LazyModule("titanrun.config.toml_reader")

FORMATS: dict[str, Literal["yaml", "toml"]] = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
DATA_SUFFIXES = (".jsonl", ".parquet", ".csv", ".arrow", ".gz", ".zst")
MAX_FOLDER_ENTRIES = 1000
SharedTrees: TypeAlias = dict[tuple[str, str, Origin | None], tuple[bytes, Node]]
shared_trees: ContextVar[SharedTrees | None] = ContextVar("shared_trees", default=None)


@contextmanager
def share_trees() -> Iterator[None]:
    """Let each file that is read several times inside be parsed once, while its bytes stay equal.

    Nobody changes the nodes of a tree, so that all readers may hold the same one.
    """
    token = shared_trees.set({})
    try:
        yield
    finally:
        shared_trees.reset(token)


def read_source(path: str, *, included_from: Origin | None = None, name: str | None = None) -> Node:
    """Read the mapping in the YAML or TOML file at `path`; the suffix selects the format.

    A text without a suffix, from standard input or `<(command)`, tells its format by its first key.

    Args:
        path: The path as given by the user.
        included_from: The location in another file that names this one.
        name: The name of the file in messages; its path by default.

    Raises:
        ProblemsFound: With all problems of the file.
    """
    name = path if name is None else name
    data = read_source_bytes(path, name, included_from)
    trees, key = shared_trees.get(), (path, name, included_from)
    if trees is not None and key in trees and trees[key][0] == data:
        return trees[key][1]
    tree = read_bytes(data, path, name, included_from)
    if trees is not None:
        trees[key] = data, tree
    return tree


def read_bytes(data: bytes, path: str, name: str, included_from: Origin | None) -> Node:
    """Read the mapping in the bytes of a file. Raise ProblemsFound with all its problems."""
    source_format = FORMATS.get(Path(path).suffix.lower())
    if source_format is None and is_stream(path):
        source_format = "toml" if looks_like_toml(data) else "yaml"
    if source_format is None:
        raise problem_error(
            "file",
            f"{name} is neither YAML nor TOML by its name",
            origin=included_from,
            hint=suggest_recipe_name(path),
        )
    if len(data) > MAX_BYTES:
        raise text_too_large_error(
            Origin(SourceText(name, "", included_from=included_from), 1, 1, 1)
        )
    return read_source_text(decode_source(data, name, included_from=included_from), source_format)


def suggest_recipe_name(path: str) -> str:
    """Return the hint for a file that is no recipe by its name."""
    if Path(path).suffix.lower() in DATA_SUFFIXES:
        return (
            "it is data, which a recipe names: titanrun init --kind sft --model MODEL "
            f"--data {shlex.quote(path)} -o mine.yaml writes one"
        )
    return "name it .yaml, .yml or .toml"


def read_source_text(source: SourceText, source_format: Literal["yaml", "toml"]) -> Node:
    """Read the mapping in a YAML or TOML text. Raise ProblemsFound with all its problems."""
    check_source_text(source)
    return read_yaml(source) if source_format == "yaml" else toml_reader.read_toml(source)


def read_value_text(source: SourceText, *, start: int = 0) -> Node:
    """Read the YAML value from index `start` of an override to its end.

    Columns are those of the whole override. A missing value is null, marked at the text before
    `start`. Raises ProblemsFound.
    """
    check_source_text(source)
    return read_yaml_value(source, start)


def check_source_text(source: SourceText) -> None:
    """Raise ProblemsFound for text that is too long or has invisible characters."""
    if len(source.text) > MAX_BYTES:
        raise text_too_large_error(
            Origin(SourceText(source.name, "", source.kind, source.included_from), 1, 1, 1)
        )
    check_characters(source)


def read_source_bytes(path: str, name: str, included_from: Origin | None) -> bytes:
    """Read the bytes of a file, at most one more than the limit."""
    try:
        stream = find_stream_bytes(path)
        if stream is not None:
            return stream
        if not stat.S_ISREG(Path(path).stat().st_mode):
            kind = "a directory" if Path(path).is_dir() else "not a regular file"
            raise problem_error("file", f"{name} is {kind}", origin=included_from)
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise missing_file_error(path, name, included_from) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise problem_error("file", f"cannot read {name}: {reason}", origin=included_from) from None
    except ValueError:  # a NUL character
        raise problem_error(
            "file", f"{name!r} is not a valid file path", origin=included_from
        ) from None


def missing_file_error(path: str, name: str, included_from: Origin | None) -> ProblemsFound:
    """Build the problem of a missing file, with similar names in its folder.

    They are written as the file that names it must write them.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        meant = find_near_path(path)
        return problem_error(
            "file",
            f"file not found: {name}",
            origin=included_from,
            hint=f"did you mean '{format_included_path(meant, included_from)}'?"
            if meant
            else f"folder {folder} does not exist either",
        )
    stem, names = Path(path).stem, {Path(name).stem: name for name in list_recipe_files(folder)}
    near = find_closest(stem, names)
    alike = [near] if near else [other for other in names if stem in other]
    found = (format_included_path(str(folder / names[other]), included_from) for other in alike)
    paths = format_word_list((f"'{path}'" for path in found), max_words=3)
    hint = f"did you mean {paths}?" if alike else None
    if not alike and included_from is None and Path(path).suffix.lower() not in FORMATS:
        hint = (
            "recipes end in .yaml, .yml or .toml; write an override as path=value, without spaces"
        )
    return problem_error("file", f"file not found: {name}", origin=included_from, hint=hint)


def format_included_path(path: str, included_from: Origin | None) -> str:
    """Return a path as a file writes it that names others relative to its own folder."""
    if included_from is None or is_stream(included_from.source.name):
        return path
    text = included_from.source.get_line(included_from.line)
    written = text[included_from.column - 1 : included_from.end_column - 1].strip("\"'")
    if Path(written).is_absolute():
        return path
    return Path(os.path.relpath(path, Path(included_from.source.name).parent)).as_posix()


def list_recipe_files(folder: Path) -> list[str]:
    """Return the names of the YAML and TOML files in a folder.

    Return an empty list if the folder is too large to search or not readable.
    """
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name for entry, _ in zip(entries, range(MAX_FOLDER_ENTRIES), strict=False)
            ]
    except OSError:
        return []
    return sorted(name for name in names if Path(name).suffix.lower() in FORMATS)
