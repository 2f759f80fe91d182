"""What a tracker is told of the run whose metrics it gets."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run in words that may leave the machine: secrets stand as references, values of secrets as `***`.

    Args:
        name: of the recipe.
        resolved: the text of resolved.yaml.
        settings: the same as data.
        recipe_hash: SHA-256 of the resolved recipe, as the first line of resolved.yaml has it.
    """

    name: str
    resolved: str
    settings: Mapping[str, Any]
    recipe_hash: str

    def leaves(self) -> dict[str, str]:
        """Every setting as text, by its dotted path; a list is one setting, written as JSON."""
        return dict(flat(self.settings))


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of nested mappings."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
