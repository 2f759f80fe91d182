"""A run of kind eval."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.commands.evaluate import LoadedEvalModel
from titanrun.worker.rank_main import main

HELD_OUT = "validation={enable: true, dataset: {name: tokens, path: %s}}"


def test_it_measures_the_weights_it_starts_from_and_trains_nothing(
    run: Callable[..., Path], tokens: Path
) -> None:
    trained = run("trained", HELD_OUT % tokens, "training.steps=3")
    assert main([str(trained)]) == 0
    losses = [
        line["validation/loss"]
        for line in read_metrics(trained.parent / "metrics.jsonl")
        if "validation/loss" in line
    ]

    start = f"checkpoint.initial_load_path={trained.parent}"
    measured = run("measured", "kind=eval", HELD_OUT % tokens, start, "evaluation.batch_size=7")
    assert main([str(measured)]) == 0
    found = json.loads((measured.parent / "evaluation.json").read_text())
    assert found["weights"] == str(trained.parent / "checkpoint" / "step-3")
    (task,) = found["tasks"]
    assert (task["task"], task["rows"], task["tokens"]) == ("loss", 30, 480)
    assert task["loss"] == pytest.approx(losses[-1], rel=1e-6)
    assert not (measured.parent / "checkpoint").exists()
    assert json.loads((measured.parent / "status.json").read_text())["state"] == "finished"


def test_without_weights_to_measure_it_ends_with_a_problem(
    run: Callable[..., Path], tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("measured", "kind=eval", HELD_OUT % tokens))]) == 4
    assert "a run of kind eval needs initial weights to evaluate" in capsys.readouterr().err


def test_a_pass_takes_the_rows_that_the_recipe_says(
    run: Callable[..., Path], tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = run("trained", "training.steps=2")
    assert main([str(trained)]) == 0
    sizes: list[int] = []
    loss_sum = LoadedEvalModel.compute_loss_sum

    def counted(subject: LoadedEvalModel, batch: TokenBatch) -> Tensor:
        sizes.append(len(batch.tokens))
        return loss_sum(subject, batch)

    monkeypatch.setattr(LoadedEvalModel, "compute_loss_sum", counted)
    start = f"checkpoint.initial_load_path={trained.parent}"
    assert (
        main(
            [
                str(
                    run(
                        "measured",
                        "kind=eval",
                        HELD_OUT % tokens,
                        start,
                        "evaluation.batch_size=13",
                    )
                )
            ]
        )
        == 0
    )
    assert sizes == [13, 13, 4]
