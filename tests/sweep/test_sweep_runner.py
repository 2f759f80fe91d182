"""Runs that a sweep stops early, over several starts of the sweep."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.sweep.config import HalvingConfig, SweepConfig
from titanrun.sweep.run_sources import FixedRuns
from titanrun.sweep.sweep_runner import LocalStarter, SweepRunner
from titanrun.sweep.validate_points import PlannedRun

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
HALVING = HalvingConfig(first_step=2, factor=2)


def write_losses(folder: Path, losses: Sequence[float]) -> None:
    folder.mkdir()
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def poll_once(folder: Path) -> dict[str, str]:
    """Start a sweep runner whose run `leader` trains, and return what it stops."""
    resolved = resolve_recipe(str(RECIPE), environment={})
    runs = [
        PlannedRun(path.name, path, {}, (), resolved)
        for path in sorted(folder.iterdir())
        if path.is_dir()
    ]
    source = FixedRuns(
        folder=folder, runs=runs, print_line=lambda line: None, is_edited=lambda run: False
    )
    runner = SweepRunner(
        config=SweepConfig(version=1, recipe=str(RECIPE), early_stopping=HALVING),
        folder=folder,
        source=source,
        starter=LocalStarter(str(RECIPE), slots=1),
        print_line=lambda line: None,
    )
    with subprocess.Popen(["sleep", "20"]) as training:
        runner._processes["leader"] = training
        runner._poll()
        training.kill()
    return source.early_stop_reasons


def test_a_sweep_that_is_started_again_remembers_its_promotions(tmp_path: Path) -> None:
    """Row A2 of the defect list."""
    write_losses(tmp_path / "leader", [9, 8, 1, 1])
    assert poll_once(tmp_path) == {}
    for number in range(6):
        write_losses(tmp_path / f"later-{number}", [5, 4])
    assert poll_once(tmp_path) == {}
    # without the record of the sweep it would be judged at step 2 again
    (tmp_path / "sweep.json").unlink()
    assert set(poll_once(tmp_path)) == {"leader"}
