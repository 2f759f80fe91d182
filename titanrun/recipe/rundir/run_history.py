"""History of a run for comparison with another start: recipe, starts and logged steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import problem_error
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_enclosing_run
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    get_starts,
    read_json_or_empty,
)

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunHistory:
    """History of a run, or of its beginning up to a checkpoint.

    Args:
        folder: Run directory.
        resolved_path: File of the recipe that ran.
        run: Recipe that ran.
        starts: How and where the run was started, from run.json; empty if that is missing.
        logged_steps: Metrics of the logged steps, each once, in order.
    """

    folder: Path
    resolved_path: Path
    run: Recipe
    starts: list[Line]
    logged_steps: list[Line]

    @property
    def last_step(self) -> int:
        """Last logged step."""
        return int(self.logged_steps[-1]["step"])


def load_run_history(place: Path, steps: int | None) -> RunHistory:
    """Load the history of a run, or of the run of a checkpoint up to its step.

    Args:
        place: Run directory or checkpoint.
        steps: Last step to include; None for all.

    Raises:
        ProblemsFound: If nothing can be compared.
    """
    if not place.is_dir():
        raise problem_error(
            "file",
            f"folder not found: '{place}'",
            hint="name a run directory, or a checkpoint in one",
        )
    folder, last = place, steps
    if is_checkpoint(place):
        around = find_enclosing_run(place)
        if around is None:
            message = (
                f"checkpoint '{place}' is outside of its run directory: "
                f"the losses to compare with are in the run's {METRICS}"
            )
            raise problem_error(
                "file", message, hint="name the run directory, or a checkpoint in it"
            )
        folder, step = around, int(place.resolve().name.partition("-")[2])
        last = step if steps is None else min(step, steps)
    if not (place / RESOLVED).is_file():
        raise problem_error(
            "file",
            f"'{place}' is neither a run directory nor a checkpoint",
            hint="name a folder that holds resolved.yaml",
        )
    logged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else []
    lines = [line for line in logged if last is None or line["step"] <= last]
    if not lines:
        within = "" if last is None else f" up to step {last}"
        raise problem_error(
            "file",
            f"'{folder}' has no logged steps{within}: nothing to reproduce",
            hint=f"see {folder / METRICS}",
        )
    starts = get_starts(read_json_or_empty(folder / RUN_JSON))
    return RunHistory(folder, place / RESOLVED, load_resolved(place / RESOLVED), starts, lines)
