"""Paths and values of recipes as the shipped JSON Schema knows them, for completion: no config is imported."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from titanrun.config.names import PathMistake, parse_path
from titanrun.recipe.catalogue import schema_file

Schema = dict[str, Any]


@cache
def schema() -> Schema:
    """The schema; an empty one where the file does not ship."""
    try:
        found: Schema = json.loads(schema_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def variants(node: Schema) -> Iterator[Schema]:
    """A node with its references followed and its alternatives side by side."""
    if "$ref" in node:
        yield from variants(schema()["$defs"][node["$ref"].rpartition("/")[2]])
        return
    yield node
    for option in node.get("anyOf", ()):
        yield from variants(option)


def properties(node: Schema) -> dict[str, Schema]:
    """The keys of a section, or of all components of a slot."""
    found: dict[str, Schema] = {}
    for variant in variants(node):
        cases = [properties(case["then"]) for case in variant.get("then", {}).get("allOf", ())]
        for part in (variant.get("properties", {}), *cases):
            for name, inside in part.items():
                # components of one slot may hold different sections under one name
                found[name] = (
                    inside
                    if found.get(name, inside) == inside
                    else {"anyOf": [found[name], inside]}
                )
    return found


def item(node: Schema) -> Schema | None:
    """What the items of a list are; None for what is no list."""
    return next((variant["items"] for variant in variants(node) if "items" in variant), None)


def node_at(text: str) -> Schema | None:
    """The schema of what stands at a path; None where nothing does."""
    try:
        steps = parse_path(text) if text else ()
    except PathMistake:
        return None
    node: Schema | None = schema()
    for step in steps:
        if node is not None:
            node = item(node) if isinstance(step, int) else properties(node).get(step)
    return node


def paths(current: str, *, leaf: str) -> Iterator[str]:
    """Paths one step on from what is typed: sections with a dot, lists of components with [0]., others with `leaf` behind them."""
    head, dot, last = current.rpartition(".")
    holder = node_at(head)
    for name, node in properties(holder).items() if holder else ():
        if not name.startswith(last):
            continue
        inside = item(node)
        below = "[0]." if inside and properties(inside) else "." if properties(node) else ""
        if below:
            yield f"{head}{dot}{name}{below}"
        if not below or list(values(f"{head}{dot}{name}")):
            yield f"{head}{dot}{name}{leaf}"


def values(path: str) -> Iterator[str]:
    """The words that may stand at a path: names of components, named values, true and false, auto, null."""
    node = node_at(path)
    for variant in variants((item(node) or node) if node else {}):
        yield from (
            str(name)
            for name in variant.get("then", {})
            .get("properties", {})
            .get("name", {})
            .get("enum", ())
        )
        yield from (str(value) for value in variant.get("enum", ()))
        yield from (str(variant[key]) for key in ("const",) if key in variant)
        yield from {"boolean": ("true", "false"), "null": ("null",)}.get(
            variant.get("type", ""), ()
        )


def slot_names() -> dict[str, list[str]]:
    """The names of every slot's components."""
    found = {}
    for name, definition in schema().get("$defs", {}).items():
        names = definition.get("then", {}).get("properties", {}).get("name", {}).get("enum")
        if names:
            found[name] = names
    return found
