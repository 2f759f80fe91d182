"""The best held-out loss of a run, and when it has risen for long enough to say so."""

import math

import pytest

from titanrun.components.metrics.held_out_history import (
    LOSS,
    HeldOutHistory,
    load_held_out_history,
)
from titanrun.components.metrics.spec.metric_format import format_metrics


def tell(*losses: float) -> tuple[HeldOutHistory, list[str]]:
    history, told = HeldOutHistory(), []
    for number, loss in enumerate(losses, start=1):
        history.add(100 * number, {LOSS: loss})
        if history.has_just_risen():
            told.append(history.format_rise())
    return history, told


def test_three_rises_in_a_row_are_told_once() -> None:
    said = (
        "held-out loss rises since step 300, it was lowest at step 300 "
        "(checkpoint.keep_best: 1 keeps the best saved one)"
    )
    assert tell(3, 2, 1, 1.1, 1.2)[1] == []
    assert tell(3, 2, 1, 1.1, 1.2, 1.3)[1] == [said]
    assert tell(3, 2, 1, 1.1, 1.2, 1.3, 1.4, 1.5)[1] == [said]


def test_a_loss_that_falls_meanwhile_begins_anew() -> None:
    history, told = tell(3, 1, 2, 3, 2.5, 2.6, 2.7, 2.8)
    assert told == [
        "held-out loss rises since step 500, it was lowest at step 200 "
        "(checkpoint.keep_best: 1 keeps the best saved one)"
    ]
    assert history.format_best() == "best held-out loss: 1.00000 at step 200"


@pytest.mark.parametrize("losses", [(), (1.0,)])
def test_a_single_loss_is_not_called_the_best(losses: tuple[float, ...]) -> None:
    assert tell(*losses)[0].format_best() == ""


def test_a_loss_that_is_no_number_is_no_rise() -> None:
    assert tell(1, math.nan, 2, 3)[1] == []


@pytest.mark.parametrize("losses", [(math.nan, 2, 1, 3), (2, math.nan, 1, 3), (3, 2, 1, math.nan)])
def test_a_loss_that_is_no_number_is_never_the_best(losses: tuple[float, ...]) -> None:
    """Row A3 of the defect list: by NaN nothing is sorted, and the best checkpoint was lost."""
    history = tell(*losses)[0]
    step = 100 * (losses.index(1) + 1)
    assert history.format_best() == f"best held-out loss: 1.00000 at step {step}"
    assert [line.split()[0] for line in history.format_table(9) if "*" in line] == [str(step)]
    nothing = tell(math.nan, math.nan)[0]
    assert nothing.format_best() == "" and len(nothing.format_table(9)) == 3


def test_a_run_goes_on_with_the_losses_before_its_checkpoint() -> None:
    lines = [{"step": 1, "loss": 9.0}, {"step": 2, LOSS: 2.0}, {"step": 4, LOSS: 1.0}]
    history = load_held_out_history(lines, last_step=3)
    assert list(history.rows) == [2]
    # what a rollback undid does not count
    history.add(5, {LOSS: 7.0})
    history.add(4, {LOSS: 3.0})
    assert {step: row[LOSS] for step, row in history.rows.items()} == {2: 2.0, 4: 3.0}


def test_losses_of_further_datasets_have_columns_of_their_own() -> None:
    history = HeldOutHistory()
    for step, code in ((2, 1.5), (4, 1.25)):
        history.add(
            step, {"loss": 1.0, "validation/loss": 2.0 / step, "validation/code/loss": code}
        )
    header, *rows = history.format_table(9)
    assert header.split() == ["step", "loss", "held", "out", "accuracy", "best", "code"]
    assert [row.split()[-1] for row in rows] == ["1.5000", "1.2500"]
    assert {len(row) for row in rows} == {len(header)}
    shown = {one.name: one.text for one in format_metrics({"validation/code/loss": 1.5})}
    assert shown["validation/code/loss"].split() == ["code", "loss", "1.50000"]
