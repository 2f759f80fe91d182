"""Source of every value of a run.

It is the content of resolved.sources.json and of `show --sources`.
"""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from titanrun.config.base import dump_config
from titanrun.config.problems import DataPath, Origin, SourceText
from titanrun.config.tree import Node, find_node, format_path, iter_nodes
from titanrun.recipe.resolving.resolve import Resolved

REPORTED_PACKAGES = (
    "titanrun",
    "torch",
    "torchao",
    "pydantic",
    "datasets",
    "tokenizers",
    "safetensors",
)


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Source of one value; `origin` is None if nobody wrote it."""

    kind: str
    origin: Origin | None = None
    shadowed: tuple[Origin, ...] = ()

    def __str__(self) -> str:
        return self.kind if self.origin is None else str(self.origin)


def collect_value_sources(resolved: Resolved) -> dict[DataPath, ValueSource]:
    """Return the source of every leaf of the run, in schema order.

    A source is a file, an override, an interpolation, decided, or default.
    """
    before = dump_config(resolved.recipe)
    return {
        path: get_value_source(resolved.tree, path, value == get_data_value(before, path))
        for path, value in list_data_leaves(dump_config(resolved.run))
    }


def get_value_source(tree: Node, path: DataPath, is_unchanged: bool) -> ValueSource:
    """Return the source of the value at `path`.

    `is_unchanged` states whether resolving left the value as it was.
    """
    node = find_node(tree, path)
    if node is not None and (is_unchanged or (isinstance(node.value, str) and path[-1] == "name")):
        return build_node_source(node)
    parent = find_node(tree, path[:-1])
    if path[-1] == "name" and parent is not None and isinstance(parent.value, str):
        return build_node_source(parent)
    return ValueSource("default" if is_unchanged else "decided")


def build_node_source(node: Node) -> ValueSource:
    """Return the source of a value written in a file or an override."""
    return ValueSource(node.via, node.origin, node.shadowed_origins)


def list_data_leaves(data: object, path: DataPath = ()) -> list[tuple[DataPath, object]]:
    """Return every scalar, and every empty list, of plain data with its path."""
    if isinstance(data, dict):
        return [
            leaf for key, value in data.items() for leaf in list_data_leaves(value, (*path, key))
        ]
    if isinstance(data, list) and data:
        return [
            leaf
            for index, value in enumerate(data)
            for leaf in list_data_leaves(value, (*path, index))
        ]
    return [(path, data)]


def get_data_value(data: object, path: DataPath) -> object:
    """Return the value at `path`, or NotImplemented, which equals no value."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step, NotImplemented)
        else:
            data = (
                data[step]
                if isinstance(data, list) and isinstance(step, int) and step < len(data)
                else NotImplemented
            )
    return data


def build_source_report(
    found: dict[DataPath, ValueSource], tree: Node, argv: list[str]
) -> dict[str, object]:
    """Return the content of resolved.sources.json."""
    return {
        "format": 1,
        "argv": argv,
        "versions": get_reported_versions(),
        "files": hash_source_files(tree),
        "values": {format_path(path): source_to_dict(source) for path, source in found.items()},
    }


def source_to_dict(source: ValueSource) -> dict[str, object]:
    """Return the source of one value as JSON."""
    entry: dict[str, object] = {"source": source.kind}
    if source.origin is not None:
        entry |= {
            "file": source.origin.source.name,
            "line": source.origin.line,
            "column": source.origin.column,
        }
    if source.shadowed:
        entry["shadowed"] = [str(origin) for origin in source.shadowed]
    return entry


def hash_source_files(tree: Node) -> dict[str, str]:
    """Return the sha256 of every file that a value came from, by the name it was read under."""
    texts: dict[str, SourceText] = {}
    for _, node in iter_nodes(tree):
        texts.setdefault(node.origin.source.name, node.origin.source)
    files = [text for text in texts.values() if text.kind == "file" and Path(text.name).is_file()]
    return {text.name: hashlib.sha256(Path(text.name).read_bytes()).hexdigest() for text in files}


def get_reported_versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect a run."""
    found = {}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
