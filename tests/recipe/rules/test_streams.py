"""What is told of streams for the ranks, the device and the lanes of a run."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """\
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: texts.jsonl, streaming: true}
  local_batch_size: 1
  global_batch_size: 24
  seq_len: 64
"""
LANES, DEVICE = "training.lanes", "device"
WORKERS = "training.dataloader.num_workers"


@pytest.mark.parametrize(
    ("ranks", "changes", "told"),
    [
        (None, {LANES: "null"}, ["training.lanes is null, but the data is a stream"]),
        (None, {LANES: 8}, []),
        (8, {LANES: 8}, []),
        (4, {LANES: 8}, []),
        (8, {LANES: 4}, ["each lane is read by 2 ranks, which tokenize the same documents"]),
        (
            4,
            {LANES: 6},
            ["4 ranks share 6 lanes, so that several tokenize the same documents"],
        ),
        (None, {WORKERS: 24}, []),
        (
            None,
            {WORKERS: 25},
            ["25 processes share 24 lanes of a rank: those without a lane are not started"],
        ),
        (
            8,
            {WORKERS: 4},
            ["4 processes share 3 lanes of a rank: those without a lane are not started"],
        ),
        (
            None,
            {WORKERS: 0, DEVICE: "gpu"},
            ["the gpu waits while its rank tokenizes the stream: num_workers is 0"],
        ),
        (None, {WORKERS: 0, DEVICE: "cpu"}, []),
    ],
)
def test_lanes_and_processes_that_do_not_fit_the_run_are_told(
    ranks: int | None, changes: dict[str, object], told: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    overrides = [f"{name}={value}" for name, value in changes.items()]
    try:
        found = resolve_recipe(str(path), overrides, environment={}, ranks=ranks).warnings
    except ProblemsFound as error:
        found = error.problems
    assert [problem.message for problem in found] == told
