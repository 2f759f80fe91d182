"""Lineage of runs: forks go on at the step of the checkpoint that they began from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_enclosing_run
from titanrun.recipe.rundir.run_files import METRICS, RESOLVED, RUN_JSON, read_json_or_empty
from titanrun.runs.metric_series import XAxis, load_x_position


@dataclass(frozen=True, slots=True)
class Ancestor:
    """Checkpoint that a run began from.

    Args:
        run: Run directory of the checkpoint.
        step: Step of the checkpoint, in the steps of that run.
        continues_steps: Whether the run took over the step too, and counts on from it.
    """

    run: Path
    step: int
    continues_steps: bool


def find_related_ancestors(folders: Sequence[Path]) -> dict[Path, list[Ancestor]]:
    """Return the ancestors, nearest first, of each run that has a relative among the others.

    Relatives descend from one run. A run without any keeps its own steps, so that a fine-tuned
    model alone does not begin at the last step of its pretraining.
    """
    ancestors = {folder: load_ancestors(folder) for folder in dict.fromkeys(folders)}
    roots = {
        folder: (found[-1].run if found else folder).resolve()
        for folder, found in ancestors.items()
    }
    sizes = Counter(roots.values())
    return {folder: found for folder, found in ancestors.items() if sizes[roots[folder]] > 1}


def load_ancestors(folder: Path) -> list[Ancestor]:
    """Return the checkpoints that a run and its ancestors began from, nearest first."""
    found: list[Ancestor] = []
    seen = {folder.resolve()}
    while (parent := find_ancestor(folder)) is not None and parent.run.resolve() not in seen:
        found.append(parent)
        folder = parent.run
        seen.add(folder.resolve())
    return found


def find_ancestor(folder: Path) -> Ancestor | None:
    """Return the checkpoint that a run began from, or None if it is not in a run directory."""
    parent = read_json_or_empty(folder / RUN_JSON).get("parent")
    if not isinstance(parent, Mapping) or not isinstance(parent.get("step"), int):
        return None
    run = find_enclosing_run(Path(str(parent.get("checkpoint"))))
    if run is None:
        return None
    section = load_resolved(folder / RESOLVED).checkpoint
    return Ancestor(run, parent["step"], not section.initial_load_model_only)


def compute_step_offset(ancestors: Sequence[Ancestor]) -> int:
    """Return the steps that a run's ancestors trained before its own first step."""
    return sum(ancestor.step for ancestor in ancestors if not ancestor.continues_steps)


def compute_x_offset(ancestors: Sequence[Ancestor], x: XAxis) -> float:
    """Return the steps, tokens or seconds of a run's ancestors before its own first step."""
    if x == "step":
        return float(compute_step_offset(ancestors))
    return sum(
        load_x_position(ancestor.run / METRICS, ancestor.step, x)
        for ancestor in ancestors
        if not ancestor.continues_steps
    )


def format_start(ancestors: Sequence[Ancestor]) -> str:
    """Format where a run began, such as `step 40 of runs/first`."""
    nearest = ancestors[0]
    return f"step {compute_step_offset(ancestors[1:]) + nearest.step} of {nearest.run}"
