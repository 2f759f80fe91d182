"""What a run left behind that another start can be compared with: its recipe, its starts, and the steps it logged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.manifest import is_checkpoint
from titanrun.components.metrics.jsonl import read_metrics
from titanrun.config.problems import fail
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.run_dir import METRICS, RUN_JSON, read_json
from titanrun.recipe.saved import RESOLVED, run_around

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run, or its beginning up to a checkpoint.

    Args:
        folder: the run directory.
        resolved: the recipe that ran, as a file.
        run: the same.
        starts: how and where it was started, from run.json; empty where that is missing.
        lines: the steps it logged, each once, in order.
    """

    folder: Path
    resolved: Path
    run: Recipe
    starts: list[Line]
    lines: list[Line]

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        return int(self.lines[-1]["step"])


def recorded(place: Path, steps: int | None) -> Recorded:
    """The run at `place`, or that of the checkpoint there up to its step; no further than `steps`. Raises ProblemsFound where nothing can
    be compared."""
    if not place.is_dir():
        raise fail(
            "file",
            f"there is no folder '{place}'",
            help="name a run directory, or a checkpoint in one",
        )
    folder, last = place, steps
    if is_checkpoint(place):
        around = run_around(place)
        if around is None:
            message = f"'{place}' lies outside of its run: the losses to compare with are in the run's {METRICS}"
            raise fail("file", message, help="name the run directory, or a checkpoint in it")
        folder, step = around, int(place.resolve().name.partition("-")[2])
        last = step if steps is None else min(step, steps)
    if not (place / RESOLVED).is_file():
        raise fail(
            "file",
            f"'{place}' is neither a run directory nor a checkpoint",
            help="name a folder that holds resolved.yaml",
        )
    logged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else []
    lines = [line for line in logged if last is None or line["step"] <= last]
    if not lines:
        within = "" if last is None else f" up to step {last}"
        raise fail(
            "file",
            f"'{folder}' logged no step{within}: there is nothing to reproduce",
            help=f"see {folder / METRICS}",
        )
    starts = read_json(folder / RUN_JSON).get("starts", [])
    return Recorded(folder, place / RESOLVED, read_resolved(place / RESOLVED), starts, lines)
