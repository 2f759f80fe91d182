"""When two runs are the same: every bit where the machines are alike, a stated tolerance where they
are not."""

import math
from typing import Any

import pytest

from titanrun.recipe.comparing.metric_comparison import (
    GRAD_NORM_FACTOR,
    TOLERANCE,
    find_first_mismatch,
    find_nondeterminism_causes,
)
from titanrun.recipe.resolving.resolve import load_resolved_text

LINES = [{"step": step, "loss": 8.0 - step, "grad_norm": 1.0, "tps": step} for step in (1, 2, 3)]
RECIPE = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny}\ndebug: "
    "{deterministic: %s}\n"
)
MACHINE = {"device": "cpu", "device_name": "cpu", "torch": "2.13.0", "threads": 2}


def changed(step: int, **values: float) -> list[dict[str, Any]]:
    return [{**line, **(values if line["step"] == step else {})} for line in LINES]


def said(found: list[dict[str, Any]], tolerance: float | None = None) -> str | None:
    unequal = find_first_mismatch(LINES, found, tolerance)
    return None if unequal is None else str(unequal)


def test_the_same_numbers_are_equal_whatever_else_is_logged() -> None:
    assert (
        said(
            [
                {**line, "tps": 0, "more": 1}
                for line in [*LINES, {"step": 4, "loss": 1, "grad_norm": 1}]
            ]
        )
        is None
    )


def test_the_first_step_that_differs_in_a_bit_is_named_with_both_values() -> None:
    other = math.nextafter(6.0, 7.0)
    assert said(changed(2, loss=other, grad_norm=9.0)) == f"step 2: loss was 6.0, now {other!r}"
    assert said(changed(3, grad_norm=1.5)) == "step 3: grad_norm was 1.0, now 1.5"


def test_a_tolerance_is_relative_and_wider_for_norms() -> None:
    assert said(changed(2, loss=6.0 * (1 + 0.9 * TOLERANCE)), TOLERANCE) is None
    assert said(changed(2, loss=6.0 * (1 + 1.1 * TOLERANCE)), TOLERANCE) is not None
    assert said(changed(2, grad_norm=1 + 0.9 * GRAD_NORM_FACTOR * TOLERANCE), TOLERANCE) is None
    assert said(changed(2, grad_norm=1 + 1.3 * GRAD_NORM_FACTOR * TOLERANCE), TOLERANCE) is not None


def test_nan_is_nan_and_nothing_else() -> None:
    nan = changed(3, loss=math.nan)
    assert find_first_mismatch(nan, nan, None) is None
    assert find_first_mismatch(nan, nan, TOLERANCE) is None
    assert said(nan, TOLERANCE) == "step 3: loss was 5.0, now nan"
    assert find_first_mismatch(changed(3, loss=math.inf), nan, TOLERANCE) is not None


def test_steps_that_only_one_has_are_not_compared() -> None:
    assert said(LINES[:1]) is None


def test_a_validation_that_only_one_made_is_not_compared() -> None:
    assert find_first_mismatch(changed(3, **{"validation/loss": 4.0}), LINES, None) is None
    other = changed(3, **{"validation/loss": 5.0})
    assert (
        str(find_first_mismatch(changed(3, **{"validation/loss": 4.0}), other, None))
        == "step 3: validation/loss was 4.0, now 5.0"
    )


@pytest.mark.parametrize(
    ("start", "now", "deterministic", "reasons"),
    [
        (MACHINE, MACHINE, False, []),
        ({**MACHINE, "device": "cuda"}, {**MACHINE, "device": "cuda"}, True, []),
        (
            MACHINE,
            {**MACHINE, "device": "cuda", "device_name": "H100"},
            False,
            ["debug.deterministic is false", "different device name"],
        ),
        (
            MACHINE,
            {**MACHINE, "torch": "2.14.0", "threads": 1},
            False,
            ["different torch", "different threads"],
        ),
        (None, MACHINE, False, ["machine is not recorded"]),
    ],
)
def test_bits_are_compared_on_the_same_machine_only(
    start: dict[str, Any] | None, now: dict[str, Any], deterministic: bool, reasons: list[str]
) -> None:
    run = load_resolved_text(RECIPE % str(deterministic).lower())
    starts = [{} if start is None else {"machine": start}]
    assert find_nondeterminism_causes(starts, {"machine": now}, run) == reasons


def test_another_number_of_ranks_adds_up_in_another_order() -> None:
    run = load_resolved_text(RECIPE % "false")
    starts = [{"machine": MACHINE, "decided": {"ranks": ranks}} for ranks in (1, 2)]
    assert find_nondeterminism_causes(starts, starts[0], run) == ["different number of ranks"]
