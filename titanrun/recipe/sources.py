"""Where every value of a run came from: the content of resolved.sources.json, and of `show --sources`."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from titanrun.config.base import dump
from titanrun.config.problems import DataPath, Origin, SourceText
from titanrun.config.tree import Node, find, path_text, walk
from titanrun.recipe.resolve import Resolved

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
class Source:
    """Where one value came from; `origin` is None for what nobody wrote."""

    kind: str
    origin: Origin | None = None
    shadowed: tuple[Origin, ...] = ()

    def __str__(self) -> str:
        return self.kind if self.origin is None else str(self.origin)


def sources(resolved: Resolved) -> dict[DataPath, Source]:
    """The source of every leaf of the run, in schema order: a file, an override, an interpolation, decided, or default."""
    before = dump(resolved.recipe)
    return {
        path: source_of(resolved.tree, path, value == at(before, path))
        for path, value in data_leaves(dump(resolved.run))
    }


def source_of(tree: Node, path: DataPath, unchanged: bool) -> Source:
    """The source of the value at `path`; `unchanged` says that resolving left it as it was."""
    node = find(tree, path)
    if node is not None and (unchanged or (isinstance(node.value, str) and path[-1] == "name")):
        return written(node)
    parent = find(tree, path[:-1])
    if path[-1] == "name" and parent is not None and isinstance(parent.value, str):
        return written(parent)
    return Source("default" if unchanged else "decided")


def written(node: Node) -> Source:
    """The source of a value that stands somewhere."""
    return Source(node.via, node.origin, node.shadowed)


def data_leaves(data: object, path: DataPath = ()) -> list[tuple[DataPath, object]]:
    """Every scalar, and every empty list, of plain data with its path."""
    if isinstance(data, dict):
        return [leaf for key, value in data.items() for leaf in data_leaves(value, (*path, key))]
    if isinstance(data, list) and data:
        return [
            leaf for index, value in enumerate(data) for leaf in data_leaves(value, (*path, index))
        ]
    return [(path, data)]


def at(data: object, path: DataPath) -> object:
    """What stands at `path`, or a value that equals nothing."""
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


def source_report(found: dict[DataPath, Source], tree: Node, argv: list[str]) -> dict[str, object]:
    """The content of resolved.sources.json."""
    return {
        "format": 1,
        "argv": argv,
        "versions": versions(),
        "files": file_hashes(tree),
        "values": {path_text(path): source_entry(source) for path, source in found.items()},
    }


def source_entry(source: Source) -> dict[str, object]:
    """One value's source as JSON."""
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


def file_hashes(tree: Node) -> dict[str, str]:
    """sha256 of every file that a value came from, by the name it was read under."""
    texts: dict[str, SourceText] = {}
    for _, node in walk(tree):
        texts.setdefault(node.origin.source.name, node.origin.source)
    files = [text for text in texts.values() if text.kind == "file" and Path(text.name).is_file()]
    return {text.name: hashlib.sha256(Path(text.name).read_bytes()).hexdigest() for text in files}


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide what a run does."""
    found = {}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
