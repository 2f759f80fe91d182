"""Paths and values of recipes from the shipped JSON Schema, for completion.

No config is imported.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from titanrun.config.list_additions import ADDITION_SUFFIX
from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.recipe.reference.shipped_recipes import get_recipe_schema_path

Schema = dict[str, Any]


@cache
def load_shipped_schema() -> Schema:
    """Load the schema; empty if the file does not ship."""
    try:
        found: Schema = json.loads(get_recipe_schema_path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found


def iter_schema_variants(node: Schema) -> Iterator[Schema]:
    """Yield a node with its references resolved, and each of its alternatives."""
    if "$ref" in node:
        yield from iter_schema_variants(
            load_shipped_schema()["$defs"][node["$ref"].rpartition("/")[2]]
        )
        return
    yield node
    for option in node.get("anyOf", ()):
        yield from iter_schema_variants(option)


def get_schema_properties(node: Schema) -> dict[str, Schema]:
    """Return the keys of a section, or of all components of a slot."""
    found: dict[str, Schema] = {}
    for variant in iter_schema_variants(node):
        cases = [
            get_schema_properties(case["then"]) for case in variant.get("then", {}).get("allOf", ())
        ]
        for part in (variant.get("properties", {}), *cases):
            for name, inside in part.items():
                if name.endswith(ADDITION_SUFFIX):  # only in files; here += is an operator
                    continue
                # components of one slot may have different sections under the same name
                found[name] = (
                    inside
                    if found.get(name, inside) == inside
                    else {"anyOf": [found[name], inside]}
                )
    return found


def find_item_schema(node: Schema) -> Schema | None:
    """Return the schema of the items of a list, or None if it is not a list.

    Components of one slot may have lists of different items under the same name.
    """
    found = [variant["items"] for variant in iter_schema_variants(node) if "items" in variant]
    return {"anyOf": found} if len(found) > 1 else next(iter(found), None)


def find_schema_at(text: str) -> Schema | None:
    """Return the schema at a path, or None."""
    try:
        steps = parse_path(text) if text else ()
    except PathSyntaxError:
        return None
    node: Schema | None = load_shipped_schema()
    for step in steps:
        if node is not None:
            node = (
                find_item_schema(node)
                if isinstance(step, int)
                else get_schema_properties(node).get(step)
            )
    return node


def iter_path_completions(current: str, *, leaf: str) -> Iterator[str]:
    """Yield paths one key longer than the typed one.

    Sections end in a dot, lists of components in [0]., other paths in `leaf`.
    """
    head, dot, last = current.rpartition(".")
    holder = find_schema_at(head)
    for name, node in get_schema_properties(holder).items() if holder else ():
        if not name.startswith(last):
            continue
        inside = find_item_schema(node)
        below = (
            "[0]."
            if inside and get_schema_properties(inside)
            else "."
            if get_schema_properties(node)
            else ""
        )
        if below:
            yield f"{head}{dot}{name}{below}"
        if not below or list(iter_value_completions(f"{head}{dot}{name}")):
            yield f"{head}{dot}{name}{leaf}"


def iter_value_completions(path: str) -> Iterator[str]:
    """Yield the words accepted at a path: component names, literals, true, false, auto, null."""
    node = find_schema_at(path)
    for variant in iter_schema_variants((find_item_schema(node) or node) if node else {}):
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


def get_slot_choice_names() -> dict[str, list[str]]:
    """Return the names of every slot's components."""
    found = {}
    for name, definition in load_shipped_schema().get("$defs", {}).items():
        names = definition.get("then", {}).get("properties", {}).get("name", {}).get("enum")
        if names:
            found[name] = names
    return found
