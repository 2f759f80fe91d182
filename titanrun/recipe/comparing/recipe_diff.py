"""Comparison of two recipes, runs or checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from titanrun.config.base import dump_config
from titanrun.config.checksum import get_checksum_state
from titanrun.config.data_diff import DataChange, diff_data
from titanrun.config.fields import ChangeClass as ChangeClass
from titanrun.config.problems import DataPath, Origin, problem_error
from titanrun.config.tree import format_path
from titanrun.config.types import AUTO
from titanrun.recipe.comparing.resume_policy import classify_change, find_change_policy
from titanrun.recipe.editing.minimize import minimize_recipe
from titanrun.recipe.resolving.provenance import (
    UNWRITTEN_SOURCES,
    find_written_node,
    get_data_value,
    load_recorded_sources,
)
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED

DiffView = Literal["effective", "written"]


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One side of a comparison."""

    file: str
    resolved: Resolved

    def get_data(self, view: DiffView) -> object:
        """Return the data to compare.

        That is all resolved values for the view `effective`, only the written ones for `written`:
        of a run those of the recipe it was started from, if it recorded them, else those of the
        shortest recipe for it.
        """
        if view == "effective":
            return dump_config(self.resolved.run)
        written = dump_config(self.resolved.recipe)
        if not self.is_run:
            return keep_leaves(written, self.is_written)
        recorded = load_recorded_sources(self.resolved.tree.origin.source)
        if not recorded:
            return minimize_recipe(self.resolved.run)
        return keep_leaves(written, partial(is_recorded_as_written, recorded=recorded))

    @property
    def is_run(self) -> bool:
        """Whether this is an unchanged resolved.yaml."""
        return get_checksum_state(self.resolved.tree.origin.source.text) == "good"

    def is_written(self, path: DataPath) -> bool:
        """Return whether the value at `path` is in a recipe or an override."""
        return find_written_node(self.resolved.tree, path) is not None

    def find_origin(self, path: DataPath) -> Origin | None:
        """Return where the value at `path` was written, None for a default."""
        node = find_written_node(self.resolved.tree, path)
        return None if node is None else node.origin


def is_recorded_as_written(path: DataPath, recorded: Mapping[str, Any]) -> bool:
    """Return whether a run has recorded that the value at `path` was written."""
    entry = recorded.get(format_path(path), {})
    return entry.get("source", "default") not in UNWRITTEN_SOURCES


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """Changed field with its change class.

    It has both origins and whether a resume of the left run allows the change.
    """

    change: DataChange
    change_class: ChangeClass
    allows_resume: bool
    left: Origin | None
    right: Origin | None


def load_diff_side(source: str, overrides: list[str], environment: Mapping[str, str]) -> DiffSide:
    """Load a recipe file, or the resolved.yaml of a run directory or checkpoint folder.

    Raises:
        ProblemsFound: With code `file` if a folder has no resolved.yaml.
    """
    path = Path(source)
    if path.is_dir():
        if not (path / RESOLVED).is_file():
            raise problem_error(
                "file",
                f"'{source}' has no {RESOLVED}",
                hint="use a recipe, a run directory or a checkpoint",
            )
        source = str(path / RESOLVED)
    return DiffSide(source, resolve_recipe(source, overrides, environment=environment))


def keep_leaves(data: Any, is_kept: Callable[[DataPath], bool], path: DataPath = ()) -> Any:
    """Return plain data with those scalars and empty lists for which `is_kept(path)` holds.

    Mappings and lists that lose all their values are gone as well.
    """
    if isinstance(data, dict):
        kept = {key: keep_leaves(value, is_kept, (*path, key)) for key, value in data.items()}
        found = {key: value for key, value in kept.items() if value is not NotImplemented}
        return found if found or not path else NotImplemented
    if isinstance(data, list) and data:
        items = [keep_leaves(item, is_kept, (*path, at)) for at, item in enumerate(data)]
        found_items = [item for item in items if item is not NotImplemented]
        return found_items or NotImplemented
    return data if is_kept(path) else NotImplemented


def diff_recipes(left: DiffSide, right: DiffSide, view: DiffView) -> list[FieldDiff]:
    """Return all differences, in the order of the schema.

    A name that only repeats the file name does not count.
    """
    changes = diff_data(left.get_data(view), right.get_data(view))
    if view == "written" and left.is_run != right.is_run:
        changes = [change for change in changes if not is_resolved_alike(change, left, right)]
    both_unnamed = left.resolved.recipe.name is None and right.resolved.recipe.name is None
    kept = [change for change in changes if not (change.path == ("name",) and both_unnamed)]
    return [build_field_diff(change, left, right) for change in kept]


def is_resolved_alike(change: DataChange, left: DiffSide, right: DiffSide) -> bool:
    """Return whether one side writes `auto` and the other is a run with the value it stands for."""
    values = [get_data_value(dump_config(side.resolved.run), change.path) for side in (left, right)]
    return AUTO in (change.left, change.right) and values[0] == values[1]


def build_field_diff(change: DataChange, left: DiffSide, right: DiffSide) -> FieldDiff:
    """Return one change with its class and origins."""
    before, now = left.resolved.run, right.resolved.run
    meaning = find_change_policy(change.path, now) or find_change_policy(change.path, before)
    change_class = meaning[0] if meaning else "numerics"
    allows_resume = classify_change(change, before, now) != "refused"
    return FieldDiff(
        change,
        change_class,
        allows_resume,
        left.find_origin(change.path),
        right.find_origin(change.path),
    )
