"""What a real run writes agrees with the schemas that are published for it."""

import json
import math
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from titanrun.components.metrics.spec import metrics_file
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import RunDirectory, write_run_directory
from titanrun.recipe.schemas import output_schemas
from titanrun.recipe.schemas.all_schemas import SCHEMAS
from titanrun.worker.rank_main import main
from titanrun.worker.status_file import WorkerState


def check(name: str, text: str) -> None:
    """Raises where `text` is no JSON of the schema; NaN is no JSON."""
    data = json.loads(text, parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(
        SCHEMAS[name](), format_checker=jsonschema.FormatChecker()
    ).validate(data)


def test_the_files_of_a_run_agree_with_their_schemas(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    run("elsewhere")
    overrides = ["training.steps=2", "description=${name}", "checkpoint.enable=false"]
    resolved = resolve_recipe(str(tmp_path / "recipe.yaml"), overrides, environment={})
    folder = tmp_path / "run"
    for _ in range(2):
        write_run_directory(
            RunDirectory(folder, "new"),
            resolved,
            ["titanrun", "train", "recipe.yaml", *overrides],
            datetime.now(UTC),
            environment={},
        )
    assert main([str(folder / "resolved.yaml")]) == 0
    with closing(metrics_file.MetricsFile(folder / "metrics.jsonl")) as metrics:
        metrics.write(3, {"loss": math.nan, "moe/load": -math.inf})
    for name, file in {
        "run": "run.json",
        "status": "status.json",
        "sources": "resolved.sources.json",
    }.items():
        check(name, (folder / file).read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    for line in lines:
        check("metrics", line)


def test_the_words_in_the_schemas_are_those_that_are_written() -> None:
    assert set(output_schemas.STATES) == set(get_args(WorkerState))
    assert set(output_schemas.NON_FINITE) == set(metrics_file.NON_FINITE)
