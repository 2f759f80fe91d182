"""Outline of a recipe, and hints with the values that `auto` has become."""

from lsprotocol import types

from titanrun.config.base import dump_config
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, iter_nodes
from titanrun.config.type_introspection import find_value
from titanrun.lsp.convert import TextLines, to_origin_range
from titanrun.recipe.editing.examiner import Document, is_in_document

AUTO = "auto"


def list_document_symbols(document: Document, encoding: str) -> list[types.DocumentSymbol]:
    """Return the keys of a recipe that stand in its own file, nested."""
    return [] if document.tree is None else list_symbols_below(document.tree, document, encoding)


def list_symbols_below(node: Node, document: Document, encoding: str) -> list[types.DocumentSymbol]:
    """Return the symbols of a mapping or list."""
    if isinstance(node.value, dict):
        entries = list(node.value.items())
    elif isinstance(node.value, list):
        entries = [(f"[{index}]", item) for index, item in enumerate(node.value)]
    else:
        return []
    found = []
    for name, child in entries:
        place = child.key or child.origin
        if not is_in_document(place, document):
            continue
        below = list_symbols_below(child, document, encoding)
        where = to_origin_range(place, encoding)
        end = max([where.end, *(symbol.range.end for symbol in below)])
        if not below and is_in_document(child.origin, document):
            end = max(end, to_origin_range(child.origin, encoding).end)
        holds_more = isinstance(child.value, dict | list)
        kinds = types.SymbolKind
        found.append(
            types.DocumentSymbol(
                name=name,
                kind=kinds.Module if holds_more else kinds.Property,
                range=types.Range(where.start, end),
                selection_range=where,
                detail=None if holds_more else to_flow_yaml(child.value),
                children=below,
            )
        )
    return found


def list_inlay_hints(document: Document, encoding: str) -> list[types.InlayHint]:
    """Return the resolved value behind each `auto` of a recipe that is one run."""
    if document.tree is None or len(document.runs) != 1:
        return []
    values = dump_config(document.runs[0].run)
    lines = TextLines(document.text, encoding)
    found = []
    for path, node in iter_nodes(document.tree):
        if node.value != AUTO or not is_in_document(node.origin, document):
            continue
        value = find_value(values, path)
        if value in (None, AUTO) or isinstance(value, dict | list):
            continue
        where = lines.to_position(node.origin.line, node.origin.end_column)
        found.append(types.InlayHint(where, f"= {to_flow_yaml(value)}", padding_left=True))
    return found
