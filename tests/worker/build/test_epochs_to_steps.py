"""Epochs become steps when the data is open: every row once an epoch, and a run that stops goes on
as one that does not."""

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.worker.test_resume import assert_same_end, sending, train
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.worker.build.epochs_to_steps import format_training_length, resolve_epochs
from titanrun.worker.commands.dry_build import dry_build
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
# the length and the schedule of the tiny recipe, left to the epochs
FOLLOW = ["lr_scheduler.warmup_steps=auto", "lr_scheduler.total_steps=auto"]


def decided(resolved: Path) -> dict[str, object]:
    return json.loads((resolved.parent / "run.json").read_text())["starts"][-1]["decided"]


def test_an_epoch_is_every_row_once_in_another_order_each_time(run: Run, tokens: Path) -> None:
    # 2 epochs of 30 rows are 15 global batches of 4
    outcome, rows = train(run("run", "training.epochs=2", *FOLLOW))
    assert (outcome.state, outcome.step) == ("finished", 15)
    seen = [tuple(row) for batch in rows for row in batch]
    every_row = Counter(map(tuple, np.load(tokens).tolist()))
    assert Counter(seen[:30]) == Counter(seen[30:]) == every_row
    assert seen[:30] != seen[30:]


def test_rows_at_the_end_that_fill_no_batch_are_left_out(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "training.epochs=1", *FOLLOW)
    assert main([str(resolved)]) == 0
    said = capsys.readouterr().err
    assert (
        "7 steps of 4 sequences of 16 tokens: 448 tokens, 0.9333 epochs of 30 sequences, 2 "
        "sequences at the end dropped" in said
    )
    assert "finished: 7 steps" in said
    assert decided(resolved)["steps"] == 7
    assert "steps: null" in resolved.read_text()
    assert (
        resolved.parent / "checkpoint" / "step-7" / "resolved.yaml"
    ).read_bytes() == resolved.read_bytes()


def test_epochs_train_as_the_steps_that_they_come_to(run: Run) -> None:
    by_epochs, by_steps = (
        run("epochs", "training.epochs=2", *FOLLOW),
        run("steps", "training.steps=15", *FOLLOW),
    )
    train(by_epochs)
    train(by_steps)
    assert_same_end(by_epochs, by_steps, step=15)


def test_a_stop_and_the_rest_are_the_same_epochs(run: Run) -> None:
    uncut, stopped = (
        run("uncut", "training.epochs=2", *FOLLOW),
        run("stopped", "training.epochs=2", *FOLLOW),
    )
    _, expected_rows = train(uncut)
    outcome, rows = train(stopped, sending(signal.SIGTERM, at=9))
    assert outcome.message == "stopped by SIGTERM after step 9 of 15, saved"
    outcome, more_rows = train(stopped)
    assert (outcome.state, outcome.step) == ("finished", 15)
    assert rows + more_rows == expected_rows
    assert_same_end(uncut, stopped, step=15)


def test_more_epochs_go_on_from_the_end(run: Run) -> None:
    schedule = ["lr_scheduler.warmup_steps=2", "lr_scheduler.total_steps=22"]
    short, uncut = (
        run("run", "training.epochs=2", *schedule),
        run("uncut", "training.epochs=3", *schedule),
    )
    assert main([str(short)]) == main([str(uncut)]) == 0
    assert main([str(run("run", "training.epochs=3", *schedule))]) == 0
    assert [line["step"] for line in read_metrics(short.parent / "metrics.jsonl")] == list(
        range(1, 23)
    )
    assert_same_end(short, uncut, step=22)


def test_fewer_rows_than_a_global_batch_are_no_epoch(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main([str(run("run", "training.epochs=1", "training.global_batch_size=32", *FOLLOW))]) == 3
    )
    assert (
        "1 epoch has 30 sequences, but training.global_batch_size is 32" in capsys.readouterr().err
    )


def test_a_warmup_longer_than_the_epochs_is_told_before_the_first_step(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run("run", "training.epochs=1", "lr_scheduler.warmup_steps=8")
    assert main([str(resolved)]) == 2
    assert "a warmup of 8 steps exceeds the run length of 7" in capsys.readouterr().err
    assert not (resolved.parent / "metrics.jsonl").exists()


def test_what_follows_from_the_epochs_is_decided_with_them(run: Run) -> None:
    recipe = resolve_epochs(
        load_resolved(run("run", "training.epochs=20", *FOLLOW)), num_samples=30
    )
    assert (
        recipe.training.steps,
        recipe.lr_scheduler.warmup_steps,
        recipe.lr_scheduler.total_steps,
    ) == (150, 15, 150)


def test_the_introduction_has_the_length_in_every_unit(run: Run) -> None:
    assert format_training_length(
        load_resolved(run("run", "training.steps=45")), num_samples=30
    ) == ("45 steps of 4 sequences of 16 tokens: 2,880 tokens, 6 epochs of 30 sequences")


def test_what_waits_for_the_epochs_can_be_built_without_data(run: Run) -> None:
    dry_build(load_resolved(run("run", "training.epochs=1", *FOLLOW)), world_size=1)


def test_a_run_is_not_shortened_to_fewer_epochs_than_it_has_trained(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("run", "training.epochs=2", *FOLLOW))]) == 0
    assert main([str(run("run", "training.epochs=1", *FOLLOW))]) == 2
    assert (
        "error[conflict/steps-already-done]: the run has already trained 15 steps, but 1 epoch "
        "has only 7" in capsys.readouterr().err
    )
