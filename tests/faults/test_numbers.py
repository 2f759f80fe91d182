"""Rows 24 and 26 to 29: numbers that are none. tests/worker/test_guard.py looks at each policy more
closely."""

import json
import math
from pathlib import Path

from tests.faults import seams
from tests.faults.conftest import Note, Run, said
from tests.faults.processes import work
from titanrun.components.metrics.spec.metrics_file import read_metrics


def bad_steps(resolved: Path) -> list[int]:
    return [
        line["step"]
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if not math.isfinite(line["grad_norm"])
    ]


def test_row_24_a_nan_once_is_stopped_at_or_skipped(run: Run, note: Note) -> None:
    stopped, skipping = run("stopped"), run("skipping", "guard.non_finite=skip")
    assert work(stopped, seams.loss_is_nan, 5, 5) == 5
    assert "error[non-finite]: loss is nan at step 5" in said(stopped)
    assert work(stopped) == 0
    assert work(skipping, seams.loss_is_nan, 5, 5) == 0
    assert bad_steps(skipping) == [5]
    outcome = (
        "stop: exit 5, then resumes; skip: weights and optimizer untouched, no later step is "
        "skipped"
    )
    note(
        24, injected="loss NaN in step 5", outcome=outcome, lost="stop: one interval; skip: 1 step"
    )


def test_row_26_infinite_gradients_with_a_finite_loss_are_refused(run: Run, note: Note) -> None:
    resolved = run()
    assert work(resolved, seams.gradient_is_inf, 5) == 5
    assert "gradient norm is" in said(resolved)
    evidence = json.loads((resolved.parent / "logs" / "non-finite-step-5-rank-0.json").read_text())
    assert evidence["bad_gradients"] == ["output.weight"]
    outcome = (
        "rejected before the update, exit 5; the parameter is named in "
        "logs/non-finite-step-5-rank-0.json"
    )
    note(
        26,
        injected="one gradient infinite in step 5, the loss finite",
        outcome=outcome,
        lost="1 step",
    )


def test_row_27_bad_data_is_left_out_and_nan_for_ever_is_an_end(run: Run, note: Note) -> None:
    back, ever = (run(name, "guard.non_finite=rollback") for name in ("back", "ever"))
    assert work(back, seams.data_is_nan, 5, 6) == 0
    assert said(back).count("rolling back to step 3") == 2
    assert work(ever, seams.loss_is_nan, 5, 99) == 5
    assert "the run went back 3 times already (guard.max_rollbacks)" in said(ever)
    assert "logs/non-finite-step-5" in said(ever)
    outcome = (
        "rolls back and skips the batches; after max_rollbacks exit 5, with sequences, "
        "module and gradients in logs/"
    )
    note(
        27,
        injected="two global batches NaN; then every step from 5 on",
        outcome=outcome,
        lost="one interval and its data",
    )


def test_row_28_a_loss_spike_is_flagged(run: Run, note: Note) -> None:
    resolved = run(
        "spiking",
        "training.steps=30",
        "guard.spike_window=8",
        "guard.spike_sigmas=20",
        "checkpoint.enable=false",
    )
    assert work(resolved, seams.loss_is_scaled, 20, 100.0) == 0
    flagged = [
        line["step"]
        for line in read_metrics(resolved.parent / "metrics.jsonl")
        if "guard/loss_spikes" in line
    ]
    assert flagged == [20]
    assert "loss spike" in said(resolved)
    outcome = (
        "flagged in the log and in metrics.jsonl; training continues; the best "
        "checkpoint depends on validation loss alone"
    )
    note(28, injected="loss of step 20 times 100", outcome=outcome, lost="nothing")


def test_row_29_spoiled_weights_are_never_gone_on_from(run: Run, note: Note) -> None:
    resolved = run()
    assert work(resolved, seams.weight_is_nan, 6) == 5
    folder = resolved.parent / "checkpoint"
    assert sorted(entry.name for entry in folder.iterdir()) == ["non-finite", "step-3"]
    assert work(resolved) == 0
    assert "resuming after step 3" in said(resolved)
    outcome = "stored separately as checkpoint/non-finite/step-6, exit 5; resumes after step 3"
    note(29, injected="a weight NaN before step 6 is saved", outcome=outcome, lost="one interval")
