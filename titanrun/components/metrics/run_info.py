"""Information for trackers about the run."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Run information that may leave the machine, without secrets.

    Secrets appear as references, values of secrets as `***`.

    Args:
        name: Name of the recipe.
        resolved_yaml: Text of resolved.yaml.
        settings: The same as data.
        recipe_hash: SHA-256 of the resolved recipe, as in the first line of resolved.yaml.
    """

    name: str
    resolved_yaml: str
    settings: Mapping[str, Any]
    recipe_hash: str

    def flatten_settings(self) -> dict[str, str]:
        """Return every setting as text, by its dotted path; a list is one setting, as JSON."""
        return dict(iter_flat_settings(self.settings))


def iter_flat_settings(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested mappings."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from iter_flat_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)
