"""Two recipes, runs or checkpoints side by side: what differs, from where, and what each difference means."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from titanrun.config.base import dump
from titanrun.config.diff import Change, compare
from titanrun.config.fields import Change as ChangeClass
from titanrun.config.problems import DataPath, Origin, fail
from titanrun.config.tree import find, plain
from titanrun.recipe.drift import meaning_of
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.run_dir import RESOLVED

View = Literal["effective", "written"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    file: str
    resolved: Resolved

    def data(self, view: View) -> object:
        """What is compared: everything that counts, or what was written only."""
        return dump(self.resolved.run) if view == "effective" else plain(self.resolved.tree)

    def origin(self, path: DataPath) -> Origin | None:
        """Where the value at `path` was written; None for a default."""
        node = find(self.resolved.tree, path)
        return None if node is None else node.origin


@dataclass(frozen=True, slots=True)
class Difference:
    """A change, what it means for the run, whether a resume allows it, and where both values were written."""

    change: Change
    change_class: ChangeClass
    resume: bool
    left: Origin | None
    right: Origin | None


def read_side(named: str, overrides: list[str], environment: Mapping[str, str]) -> Side:
    """A recipe file; of a folder its resolved.yaml, or that of the newest checkpoint in it."""
    path = Path(named)
    if path.is_dir():
        if not (path / RESOLVED).is_file():
            raise fail(
                "file",
                f"'{named}' holds no {RESOLVED}",
                help="name a recipe, a run directory or a checkpoint",
            )
        named = str(path / RESOLVED)
    return Side(named, resolve(named, overrides, environment=environment))


def differences(left: Side, right: Side, view: View) -> list[Difference]:
    """All differences, in the order of the schema. A name that only repeats the file's is none."""
    changes = compare(left.data(view), right.data(view))
    both_unnamed = left.resolved.recipe.name is None and right.resolved.recipe.name is None
    kept = [change for change in changes if not (change.path == ("name",) and both_unnamed)]
    return [difference(change, left, right) for change in kept]


def difference(change: Change, left: Side, right: Side) -> Difference:
    """One change with its class and the places it comes from."""
    meaning = meaning_of(change.path, right.resolved.run) or meaning_of(
        change.path, left.resolved.run
    )
    change_class, resume = meaning or ("numerics", False)
    return Difference(
        change, change_class, resume, left.origin(change.path), right.origin(change.path)
    )
