"""Description of a program whose configurations can be migrated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.serialize import to_flow_yaml
from titanrun.recipe.migrate.key_mapping import SourceKey
from titanrun.recipe.migrate.source_entries import SourceEntries


@dataclass(frozen=True, slots=True)
class SourceTool:
    """One program.

    `keys` has every key that can be written, by path; of those in `keys_with_defaults` the
    program's default applies if the key is omitted. `implied_values` is the program's behavior
    without a key: target, value, reason. `sections` names the recipe's section for a table of
    another name. `suggested_keys` are the keys that an unknown one is compared with, by default
    all. `split_datasets` returns the configuration with each dataset alone that
    becomes a source of a mixture, and `sample_limit` is the key of their number of records.
    `assignment` and `format_value` write a key and a value as in its files.
    """

    name: str
    keys: Mapping[str, SourceKey]
    keys_with_defaults: frozenset[str]
    read: Callable[[str], SourceEntries]
    implied_values: tuple[tuple[str, Any, str], ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    suggested_keys: frozenset[str] = frozenset()
    split_datasets: Callable[[SourceEntries], Sequence[SourceEntries]] = lambda _: ()
    sample_limit: str = ""
    assignment: str = ": "
    format_value: Callable[[object], str] = to_flow_yaml

    def format_line(self, name: str, value: object) -> str:
        """Return a key with its value as in the program's files."""
        return f"{name}{self.assignment}{self.format_value(value)}"
