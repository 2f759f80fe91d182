"""The trackers of a run, as its recipe names them."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.worker.rank_main import main

Run = Callable[..., Path]


def test_several_trackers_of_a_run_are_told_its_recipe_and_hash(run: Run) -> None:
    both = "metrics.trackers=[{name: csv, folder: table}, tensorboard]"
    resolved = run("run", "training.steps=2", both)
    assert main([str(resolved)]) == 0
    with (resolved.parent / "table" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    logged = [
        json.loads(line) for line in (resolved.parent / "metrics.jsonl").read_text().splitlines()
    ]
    assert [float(row["loss"]) for row in rows] == [line["loss"] for line in logged]
    assert rows[0]["recipe_hash"] in resolved.read_text().splitlines()[0]
    assert (resolved.parent / "tensorboard").is_dir()


def test_an_address_with_a_password_is_refused(run: Run) -> None:
    with pytest.raises(ProblemsFound) as error:
        run(
            "run",
            "metrics.trackers=[{name: mlflow, tracking_uri: 'https://me:s3cret-word@host/path'}]",
        )
    (problem,) = error.value.problems
    assert problem.path == ("metrics", "trackers", 0, "tracking_uri")
    assert "MLFLOW_TRACKING_PASSWORD" in (problem.hint or "")
