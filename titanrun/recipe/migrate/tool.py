"""What migration knows of a program whose configurations become recipes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.emit import flow
from titanrun.recipe.migrate.entries import Written
from titanrun.recipe.migrate.keys import Key


@dataclass(frozen=True, slots=True)
class Tool:
    """One program.

    `keys` has every key that can be written, by path; of those in `counted` the program's default holds where nothing is written.
    `implied` is what the program does without a key for it: target, value, why. `sections` names the recipe's section for a table of
    another name. `suggested` are the keys
    that an unknown one is compared with, all by default. `assignment` and `spelled` write a key and a value as its files do.
    """

    name: str
    keys: Mapping[str, Key]
    counted: frozenset[str]
    read: Callable[[str], Written]
    implied: tuple[tuple[str, Any, str], ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    suggested: frozenset[str] = frozenset()
    assignment: str = ": "
    spelled: Callable[[object], str] = flow

    def line(self, name: str, value: object) -> str:
        """A key with its value as the program's files have it."""
        return f"{name}{self.assignment}{self.spelled(value)}"
