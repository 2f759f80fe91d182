"""Reader of YAML configurations, as in torchtune and axolotl, into entries."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from titanrun.config.problems import DataPath, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_source
from titanrun.config.tree import Node, to_plain_data
from titanrun.recipe.migrate.source_entries import SourceEntries, SourceEntry
from titanrun.recipe.migrate.toml_comments import NO_COMMENTS, KeyComments

TRAILING_COMMENT_PATTERN = re.compile(
    r"""(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^#"']|(?<=\S)#|["'])*?(?:^|(?<=\s))(?P<comment>#.*)"""
)
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
SEVERAL = "of several datasets the first is carried over; write the others under a dataset: mixture"
INDEX = re.compile(r"\[\d+\]")
FLAGS = {"yes": True, "on": True, "no": False, "off": False}
"""Words that YAML 1.1, which these programs read, parses as booleans."""


def read_yaml_entries(
    file: str, *, whole_value_keys: Collection[str] = (), nullable_sections: Collection[str] = ()
) -> SourceEntries:
    """Return the entries of a YAML file, with `${key}` replaced by its value.

    Args:
        file: Path of the file.
        whole_value_keys: Mappings that are one value in the table.
        nullable_sections: Sections that are absent if null; it applies to their `_component_`.

    Raises:
        ProblemsFound: If the file cannot be read.
    """
    try:
        root = read_source(file)
    except ProblemsFound as trouble:
        if [problem.code for problem in trouble.problems] != ["empty"]:
            raise
        return SourceEntries((), {})
    data = to_plain_data(root)
    comments = collect_comments_by_line(root.origin.source)
    entries, taken = [], 0
    for written, path, node in iter_values(root, (), whole_value_keys):
        path = f"{path}._component_" if path in nullable_sections and node.value is None else path
        origin = node.key or node.origin
        value = fill_references(to_plain_data(node), data, file)
        found = [comments.pop(line) for line in sorted(comments) if taken < line <= origin.line]
        taken = max(taken, origin.line)
        above = tuple(line for one in found[:-1] for line in (*one.above, one.trailing) if line)
        own = KeyComments((*above, *found[-1].above), found[-1].trailing) if found else NO_COMMENTS
        entries.append(
            SourceEntry(path, written, value, origin, own, refused=SEVERAL if "[" in path else "")
        )
    rest = tuple(
        line for left in comments.values() for line in (*left.above, left.trailing) if line
    )
    return SourceEntries(tuple(entries), {"": KeyComments(rest)} if rest else {})


def iter_values(
    node: Node, at: DataPath, whole: Collection[str]
) -> Iterator[tuple[str, str, Node]]:
    """Yield every value with its path as written, and its path in the table.

    The latter has no index for the first mapping in a list.
    """
    written = format_yaml_path(at)
    path = written.replace("[0]", "")
    is_whole = INDEX.sub("", written) in whole
    if isinstance(node.value, dict) and node.value and not is_whole:
        for key, child in node.value.items():
            yield from iter_values(child, (*at, key), whole)
    elif (
        isinstance(node.value, list)
        and not is_whole
        and node.value
        and all(isinstance(item.value, dict) for item in node.value)
    ):
        for index, item in enumerate(node.value):
            yield from iter_values(item, (*at, index), whole)
    elif at:
        yield written, path, node


def format_yaml_path(at: DataPath) -> str:
    """Format a path as `datasets[0].path`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")


def fill_references(value: Any, data: Any, file: str, seen: tuple[str, ...] = ()) -> Any:
    """Return a value with references resolved and words for booleans converted.

    Raises:
        ProblemsFound: If a reference refers to itself.
    """
    if isinstance(value, list):
        return [fill_references(item, data, file, seen) for item in value]
    if isinstance(value, dict):
        return {key: fill_references(item, data, file, seen) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    alone = REFERENCE.fullmatch(value)
    if alone and (found := find_dotted_value(data, alone[1])) is not None:
        return fill_references(found, data, file, extend_reference_chain(alone[1], seen, file))

    def text(match: re.Match[str]) -> str:
        found = find_dotted_value(data, match[1])
        return (
            match[0]
            if found is None
            else str(
                fill_references(found, data, file, extend_reference_chain(match[1], seen, file))
            )
        )

    return FLAGS.get(value.lower(), REFERENCE.sub(text, value))


def extend_reference_chain(name: str, seen: tuple[str, ...], file: str) -> tuple[str, ...]:
    """Return the chain of references with one more. Raise ProblemsFound on a cycle."""
    if name in seen:
        raise problem_error(
            "interpolation", f"{file}: '${{{name}}}' refers to itself", hint="write the value"
        )
    return (*seen, name)


def find_dotted_value(data: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for step in path.split("."):
        data = data.get(step) if isinstance(data, dict) else None
    return data


def collect_comments_by_line(source: SourceText) -> dict[int, KeyComments]:
    """Return the comments of a text by the line of the key below or before them.

    Those at its end and at its top have a line number outside of the text.
    """
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: dict[int, KeyComments] = {}
    above: list[str] = []
    started = False
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith("#"):
            above.append(text)
        elif text:
            match = TRAILING_COMMENT_PATTERN.match(line)
            behind = match["comment"].rstrip() if match else ""
            if above or behind:
                found[number] = KeyComments(tuple(above), behind)
            above = []
        elif above and not started:
            found[0] = KeyComments((*found.get(0, NO_COMMENTS).above, *above))
            above = []
        started = started or bool(text and not text.startswith("#"))
    if above:
        found[len(lines) + 1] = KeyComments(tuple(above))
    return found
