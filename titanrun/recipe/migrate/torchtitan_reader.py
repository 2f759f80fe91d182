"""Reader of torchtitan configurations (TOML or JSON config dump) into entries."""

import json
from collections.abc import Iterator
from pathlib import PurePath

from titanrun.config.encoding import decode_source
from titanrun.config.json_text import JsonDepthError, parse_json
from titanrun.config.problems import Origin, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_source, read_source_bytes, read_source_text
from titanrun.config.text_positions import TextPositions
from titanrun.config.tree import Node, to_plain_data
from titanrun.recipe.migrate.source_entries import SourceEntries, SourceEntry, iter_leaf_nodes
from titanrun.recipe.migrate.toml_comments import NO_COMMENTS, parse_comments
from titanrun.recipe.migrate.torchtitan_dumps import convert_dump_to_release
from titanrun.recipe.migrate.torchtitan_extensions import OLD_SPELLINGS


def read_torchtitan(file: str) -> SourceEntries:
    """Return the entries of a TOML file or JSON dump. Raise ProblemsFound on errors."""
    suffix = PurePath(file).suffix.lower()
    if suffix == ".toml":
        return read_toml_entries(file)
    if suffix == ".json":
        return read_json_entries(file)
    raise problem_error(
        "file",
        f"'{file}' does not end in .toml or .json",
        hint="name a TOML file or a JSON dump of torchtitan",
    )


def read_toml_entries(file: str) -> SourceEntries:
    """Return the entries of a TOML file; an empty file means all defaults."""
    try:
        root = read_source(file)
    except ProblemsFound as found:
        if [problem.code for problem in found.problems] != ["empty"]:
            raise
        return SourceEntries((), {})
    comments = parse_comments(root.origin.source)
    entries = []
    for path, node in iter_leaf_nodes(root):
        written = ".".join(map(str, path))
        entries.append(
            SourceEntry(
                update_old_path(written),
                written,
                to_plain_data(node),
                node.key or node.origin,
                comments.pop(path, NO_COMMENTS),
            )
        )
    return SourceEntries(
        tuple(entries), {".".join(map(str, path)): found for path, found in comments.items()}
    )


def update_old_path(path: str) -> str:
    """Return the path in torchtitan 0.2.2 for one with a former spelling."""
    if path in OLD_SPELLINGS:
        return OLD_SPELLINGS[path]
    for old, new in OLD_SPELLINGS.items():
        if old.endswith(".") and path.startswith(old):
            return new + path.removeprefix(old)
    return path


def read_json_entries(file: str) -> SourceEntries:
    """Return the entries of a config dump of any version."""
    source = decode_source(read_source_bytes(file, file, None), file)
    try:
        data = parse_json(source.text)
    except JsonDepthError as error:
        place = TextPositions(source).to_point_origin(error.pos)
        raise problem_error("limit", f"{file} is {error.msg}", origin=place) from None
    except json.JSONDecodeError as error:
        place = TextPositions(source).to_point_origin(error.pos)
        raise problem_error(
            "syntax",
            f"this is not JSON: {error.msg.lower()}",
            origin=place,
            hint="name the file that torchtitan wrote",
        ) from None
    if not isinstance(data, dict):
        raise problem_error(
            "wrong-type",
            f"{file} does not contain a mapping",
            origin=Origin(source, 1, 1, 1),
            hint="name a config dump of torchtitan",
        )
    root = read_source_text(SourceText(file, source.text), "yaml")
    return SourceEntries(tuple(read_dump_entries(root)), {}, is_complete=True)


def read_dump_entries(root: Node) -> Iterator[SourceEntry]:
    """Yield the values of a dump under the paths of 0.2.2."""
    for found in convert_dump_to_release(root):
        yield SourceEntry(
            found.path,
            found.written_path,
            found.value,
            found.origin,
            how=found.how,
            refused=found.refused,
            original=found.original,
        )
