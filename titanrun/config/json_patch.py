"""JSON patches (RFC 6902) as lines of text: add, replace and remove."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from titanrun.config.json_text import parse_json

PATCH_HELP = (
    "write `add PATH VALUE`, `replace PATH VALUE` or `remove PATH`, with VALUE as JSON: "
    "add /spec/ttlSecondsAfterFinished 86400"
)
APPEND = "-"


@dataclass(frozen=True, slots=True)
class PatchOperation:
    """One operation: its name, the keys of its path, and the value of add and replace."""

    name: str
    keys: tuple[str, ...]
    value: Any = None


def parse_patch(line: str) -> PatchOperation:
    """Parse one operation. Raise ValueError with the reason if it is not one."""
    name, _, rest = line.strip().partition(" ")
    path, _, text = rest.strip().partition(" ")
    if name not in ("add", "replace", "remove"):
        raise ValueError(f"'{name}' is not an operation")
    if not path.startswith("/"):
        raise ValueError(f"'{path}' is not a path, which begins with a slash")
    if (name == "remove") != (not text.strip()):
        raise ValueError(f"{name} {'takes no' if name == 'remove' else 'needs a'} value")
    # RFC 6901: ~1 is a slash, ~0 a tilde
    keys = tuple(key.replace("~1", "/").replace("~0", "~") for key in path[1:].split("/"))
    if name == "remove":
        return PatchOperation(name, keys)
    try:
        return PatchOperation(name, keys, parse_json(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"{text.strip()!r} is not JSON") from error


def apply_patches(data: dict[str, Any], operations: Sequence[PatchOperation]) -> dict[str, Any]:
    """Return a copy of plain data after the operations.

    Raises:
        KeyError: A path that does not exist; its text names the path.
    """
    made = copy.deepcopy(data)
    for operation in operations:
        apply_patch(made, operation)
    return made


def apply_patch(data: Any, operation: PatchOperation) -> None:
    """Change plain data in place by one operation."""
    *outer, last = operation.keys
    shown = "/" + "/".join(operation.keys)
    holder = data
    try:
        for key in outer:
            holder = holder[int(key)] if isinstance(holder, list) else holder[key]
        if isinstance(holder, list):
            change_list(holder, last, operation)
        elif operation.name == "remove":
            del holder[last]
        elif operation.name == "replace" and last not in holder:
            raise KeyError(last)
        else:
            holder[last] = operation.value
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise KeyError(shown) from error


def change_list(items: list[Any], key: str, operation: PatchOperation) -> None:
    """Change a list by one operation, whose last key is an index or `-` for its end."""
    at = len(items) if key == APPEND and operation.name == "add" else int(key)
    if not 0 <= at < len(items) + (operation.name == "add"):
        raise IndexError(key)
    if operation.name == "add":
        items.insert(at, operation.value)
    elif operation.name == "remove":
        del items[at]
    else:
        items[at] = operation.value
