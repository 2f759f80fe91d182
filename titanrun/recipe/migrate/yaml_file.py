"""Reads a configuration in YAML, as torchtune and axolotl have them, into entries that know their place."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from titanrun.config.problems import DataPath, ProblemsFound, SourceText, fail
from titanrun.config.source import read_source
from titanrun.config.tree import Node, plain
from titanrun.recipe.migrate.comments import NONE, Comments
from titanrun.recipe.migrate.entries import Entry, Written

BEHIND = re.compile(
    r"""(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^#"']|(?<=\S)#|["'])*?(?:^|(?<=\s))(?P<comment>#.*)"""
)
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
SEVERAL = (
    "of several data sets the first is carried over; write the others under a dataset: mixture"
)
FLAGS = {"yes": True, "on": True, "no": False, "off": False}
"""Words that YAML 1.1, which the readers of these programs follow, takes for switches."""


def read_yaml_entries(
    file: str, *, leaves: Collection[str] = (), heads: Collection[str] = ()
) -> Written:
    """The entries of a YAML file, with `${key}` put in.

    Args:
        file: Its path.
        leaves: Mappings that are one value to the table.
        heads: Sections whose null says that there is none; it stands for their `_component_`.

    Raises ProblemsFound.
    """
    try:
        root = read_source(file)
    except ProblemsFound as trouble:
        if [problem.code for problem in trouble.problems] != ["empty"]:
            raise
        return Written((), {})
    data = plain(root)
    comments = comments_by_line(root.origin.source)
    entries, taken = [], 0
    for written, path, node in values_of(root, (), leaves):
        path = f"{path}._component_" if path in heads and node.value is None else path
        origin = node.key or node.origin
        value = put_in(plain(node), data, file)
        found = [comments.pop(line) for line in sorted(comments) if taken < line <= origin.line]
        taken = max(taken, origin.line)
        above = tuple(line for one in found[:-1] for line in (*one.above, one.behind) if line)
        own = Comments((*above, *found[-1].above), found[-1].behind) if found else NONE
        entries.append(
            Entry(path, written, value, origin, own, refused=SEVERAL if "[" in path else "")
        )
    rest = tuple(line for left in comments.values() for line in (*left.above, left.behind) if line)
    return Written(tuple(entries), {"": Comments(rest)} if rest else {})


def values_of(node: Node, at: DataPath, whole: Collection[str]) -> Iterator[tuple[str, str, Node]]:
    """Every value with its path as it is written, and in the table: that of the first mapping in a list has no index."""
    written = written_path(at)
    path = written.replace("[0]", "")
    if isinstance(node.value, dict) and node.value and path not in whole:
        for key, child in node.value.items():
            yield from values_of(child, (*at, key), whole)
    elif (
        isinstance(node.value, list)
        and path not in whole
        and node.value
        and all(isinstance(item.value, dict) for item in node.value)
    ):
        for index, item in enumerate(node.value):
            yield from values_of(item, (*at, index), whole)
    elif at:
        yield written, path, node


def written_path(at: DataPath) -> str:
    """`datasets[0].path`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")


def put_in(value: Any, data: Any, file: str, seen: tuple[str, ...] = ()) -> Any:
    """A value with what its references name, and words for switches as switches. Raises ProblemsFound for one that leads to itself."""
    if isinstance(value, list):
        return [put_in(item, data, file, seen) for item in value]
    if isinstance(value, dict):
        return {key: put_in(item, data, file, seen) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    alone = REFERENCE.fullmatch(value)
    if alone and (found := named(data, alone[1])) is not None:
        return put_in(found, data, file, once(alone[1], seen, file))

    def text(match: re.Match[str]) -> str:
        found = named(data, match[1])
        return (
            match[0]
            if found is None
            else str(put_in(found, data, file, once(match[1], seen, file)))
        )

    return FLAGS.get(value.lower(), REFERENCE.sub(text, value))


def once(name: str, seen: tuple[str, ...], file: str) -> tuple[str, ...]:
    """The references on the way, with one more. Raises ProblemsFound where it is among them."""
    if name in seen:
        raise fail(
            "interpolation", f"{file}: '${{{name}}}' leads to itself", help="write the value"
        )
    return (*seen, name)


def named(data: Any, path: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    for step in path.split("."):
        data = data.get(step) if isinstance(data, dict) else None
    return data


def comments_by_line(source: SourceText) -> dict[int, Comments]:
    """The comments of a text by the line of the key below or beside them; those at its end, and at its top, by a line that it has not."""
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: dict[int, Comments] = {}
    above: list[str] = []
    started = False
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith("#"):
            above.append(text)
        elif text:
            match = BEHIND.match(line)
            behind = match["comment"].rstrip() if match else ""
            if above or behind:
                found[number] = Comments(tuple(above), behind)
            above = []
        elif above and not started:
            found[0] = Comments((*found.get(0, NONE).above, *above))
            above = []
        started = started or bool(text and not text.startswith("#"))
    if above:
        found[len(lines) + 1] = Comments(tuple(above))
    return found
