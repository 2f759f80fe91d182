"""Reads a configuration of torchtitan, TOML or the JSON of its config dumps, into entries that know their place."""

import json
from collections.abc import Iterator
from pathlib import PurePath

from titanrun.config.encoding import decode
from titanrun.config.places import Places
from titanrun.config.problems import Origin, ProblemsFound, SourceText, fail
from titanrun.config.source import read_bytes, read_source, read_text
from titanrun.config.tree import Node, plain
from titanrun.recipe.migrate.comments import NONE, comments_of
from titanrun.recipe.migrate.entries import Entry, Written, leaves
from titanrun.recipe.migrate.extensions import OLD_SPELLINGS
from titanrun.recipe.migrate.layouts import as_release


def read_torchtitan(file: str) -> Written:
    """The entries of a TOML file or of a JSON dump. Raises ProblemsFound."""
    suffix = PurePath(file).suffix.lower()
    if suffix == ".toml":
        return read_toml_entries(file)
    if suffix == ".json":
        return read_json_entries(file)
    raise fail(
        "file",
        f"'{file}' is neither a TOML file nor a JSON dump by its name",
        help="torchtitan's files end in .toml or .json",
    )


def read_toml_entries(file: str) -> Written:
    """The entries of a TOML file; one without any is the release with its defaults."""
    try:
        root = read_source(file)
    except ProblemsFound as found:
        if [problem.code for problem in found.problems] != ["empty"]:
            raise
        return Written((), {})
    comments = comments_of(root.origin.source)
    entries = []
    for path, node in leaves(root):
        written = ".".join(map(str, path))
        entries.append(
            Entry(
                todays(written),
                written,
                plain(node),
                node.key or node.origin,
                comments.pop(path, NONE),
            )
        )
    return Written(
        tuple(entries), {".".join(map(str, path)): found for path, found in comments.items()}
    )


def todays(path: str) -> str:
    """The path of torchtitan 0.2.2 for one that was written otherwise before."""
    if path in OLD_SPELLINGS:
        return OLD_SPELLINGS[path]
    for old, new in OLD_SPELLINGS.items():
        if old.endswith(".") and path.startswith(old):
            return new + path.removeprefix(old)
    return path


def read_json_entries(file: str) -> Written:
    """The entries of a dump, whichever version wrote it."""
    source = decode(read_bytes(file, file, None), file)
    try:
        data = json.loads(source.text)
    except json.JSONDecodeError as error:
        place = Places(source).point(error.pos)
        raise fail(
            "syntax",
            f"this is no JSON: {error.msg.lower()}",
            origin=place,
            help="name the file that torchtitan wrote",
        ) from None
    except RecursionError:
        raise fail(
            "limit", f"{file} is nested too deeply", origin=Origin(source, 1, 1, 1)
        ) from None
    if not isinstance(data, dict):
        raise fail(
            "wrong-type",
            f"{file} holds no mapping",
            origin=Origin(source, 1, 1, 1),
            help="name a config dump of torchtitan",
        )
    root = read_text(SourceText(file, source.text), "yaml")
    return Written(tuple(dump_entries(root)), {}, is_complete=True)


def dump_entries(root: Node) -> Iterator[Entry]:
    """The values of a dump under the paths of 0.2.2."""
    for found in as_release(root):
        yield Entry(
            found.path,
            found.written,
            found.value,
            found.origin,
            how=found.how,
            refused=found.refused,
            original=found.original,
        )
