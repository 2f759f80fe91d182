"""Source of every value of a run.

It is the content of resolved.sources.json and of `show --sources`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from titanrun.config.base import dump_config
from titanrun.config.checksum import get_checksum_state
from titanrun.config.problems import DataPath, Origin, SourceText
from titanrun.config.tree import Node, find_node, format_path, iter_nodes
from titanrun.config.types import AUTO
from titanrun.config.version import VERSION
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.rundir.run_files import RESOLVED, SOURCES, get_mapping, read_json_or_empty

UNWRITTEN_SOURCES = ("default", "decided")
"""Kinds of sources of values that nobody wrote."""
REPORTED_PACKAGES = (
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
    node = find_written_node(tree, path)
    is_name = node is not None and isinstance(node.value, str) and path[-1] == "name"
    if node is not None and (is_unchanged or (is_name and node.value != AUTO)):
        return ValueSource(node.via, node.origin, node.shadowed_origins)
    return ValueSource("default" if is_unchanged else "decided")


def find_written_node(tree: Node, path: DataPath) -> Node | None:
    """Return the node that holds the value at `path`, or None if it is not written.

    The `name` of a component may be written as the component itself: `optimizer: adamw`.
    """
    node = find_node(tree, path)
    if node is not None or path[-1:] != ("name",):
        return node
    component = find_node(tree, path[:-1])
    return component if component is not None and isinstance(component.value, str) else None


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
    """Return the content of resolved.sources.json.

    A value from the resolved.yaml of a run, as at a resume, keeps the source recorded there.
    """
    recorded = {
        name: load_recorded_sources(text) for name, text in collect_source_texts(tree).items()
    }
    return {
        "format": 1,
        "argv": argv,
        "versions": get_reported_versions(),
        "files": hash_source_files(tree),
        "values": {
            format_path(path): find_recorded_source(path, source, recorded)
            or source_to_dict(source)
            for path, source in found.items()
        },
    }


def find_recorded_source(
    path: DataPath, source: ValueSource, recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, object] | None:
    """Return what the run whose resolved.yaml holds a value has recorded about its source."""
    return (
        None
        if source.origin is None or source.kind == "override"
        else recorded.get(source.origin.source.name, {}).get(format_path(path))
    )


def load_recorded_sources(text: SourceText) -> Mapping[str, Any]:
    """Return the sources recorded beside the unchanged resolved.yaml of a run, by path.

    Empty for every other text.
    """
    file = Path(text.name)
    if file.name != RESOLVED or get_checksum_state(text.text) != "good":
        return {}
    values = get_mapping(read_json_or_empty(file.with_name(SOURCES)), "values")
    return {path: entry for path, entry in values.items() if isinstance(entry, dict)}


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
    texts = collect_source_texts(tree).values()
    files = [text for text in texts if text.kind == "file" and Path(text.name).is_file()]
    return {text.name: hashlib.sha256(Path(text.name).read_bytes()).hexdigest() for text in files}


def collect_source_texts(tree: Node) -> dict[str, SourceText]:
    """Return every text that a value came from, by its name."""
    texts: dict[str, SourceText] = {}
    for _, node in iter_nodes(tree):
        texts.setdefault(node.origin.source.name, node.origin.source)
    return texts


def get_reported_versions() -> dict[str, str]:
    """Return the installed versions of the packages that affect a run."""
    found = {"titanrun": VERSION}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
