"""Comparison of two recipes, runs or checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from titanrun.config.base import dump_config
from titanrun.config.data_diff import DataChange, diff_data
from titanrun.config.fields import ChangeClass as ChangeClass
from titanrun.config.problems import DataPath, Origin, problem_error
from titanrun.config.tree import find_node, to_plain_data
from titanrun.recipe.comparing.resume_policy import classify_change, find_change_policy
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

        That is all resolved values for the view `effective`, only the written ones for `written`.
        """
        return (
            dump_config(self.resolved.run)
            if view == "effective"
            else to_plain_data(self.resolved.tree)
        )

    def find_origin(self, path: DataPath) -> Origin | None:
        """Return where the value at `path` was written, None for a default."""
        node = find_node(self.resolved.tree, path)
        return None if node is None else node.origin


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


def diff_recipes(left: DiffSide, right: DiffSide, view: DiffView) -> list[FieldDiff]:
    """Return all differences, in the order of the schema.

    A name that only repeats the file name does not count.
    """
    changes = diff_data(left.get_data(view), right.get_data(view))
    both_unnamed = left.resolved.recipe.name is None and right.resolved.recipe.name is None
    kept = [change for change in changes if not (change.path == ("name",) and both_unnamed)]
    return [build_field_diff(change, left, right) for change in kept]


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
