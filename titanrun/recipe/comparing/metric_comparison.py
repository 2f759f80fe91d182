"""Comparison of metrics between a recorded run and its rerun."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from titanrun.recipe.recipe import Recipe

Line = Mapping[str, Any]
COMPARED_METRICS = ("loss", "grad_norm", "validation/loss")
# properties of the machine that affect rounding
ROUNDING_FACTORS = (
    "device_name",
    "torch",
    "torch_commit",
    "cuda",
    "rocm",
    "cudnn",
    "processor",
    "cpu_kernels",
    "threads",
)
# relative, for losses; sums in a different order differ by rounding, which grows with the steps
TOLERANCE = 0.01
# the gradient norm varies more than the loss
GRAD_NORM_FACTOR = 10


@dataclass(frozen=True, slots=True)
class MetricMismatch:
    """First metric value that differs from the recorded one."""

    step: int
    name: str
    recorded: float
    found: float | None

    def __str__(self) -> str:
        now = "missing" if self.found is None else repr(self.found)
        return f"step {self.step}: {self.name} was {self.recorded!r}, now {now}"


def find_first_mismatch(
    recorded: Sequence[Line], found: Sequence[Line], tolerance: float | None
) -> MetricMismatch | None:
    """Return the first metric mismatch of the steps in both runs.

    Values must be equal bit by bit if `tolerance` is None, else relatively within `tolerance`.
    Return None if there is no mismatch.
    """
    by_step = {line["step"]: line for line in found}
    for line in recorded:
        again = by_step.get(line["step"])
        for name in COMPARED_METRICS if again is not None else ():
            # the steps with validation may depend on where a run stopped
            if (
                again is None
                or name not in line
                or (name not in again and name == "validation/loss")
            ):
                continue
            allowed = (
                tolerance
                if tolerance is None or name != "grad_norm"
                else GRAD_NORM_FACTOR * tolerance
            )
            if name not in again or not is_equal_within_tolerance(line[name], again[name], allowed):
                return MetricMismatch(line["step"], name, line[name], again.get(name))
    return None


def is_equal_within_tolerance(a: float, b: float, tolerance: float | None) -> bool:
    """Return whether two numbers are equal.

    They must be equal bit by bit, or within a relative tolerance. NaN equals NaN.
    """
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return (
        tolerance is not None
        and math.isfinite(a)
        and math.isfinite(b)
        and abs(a - b) <= tolerance * max(abs(a), abs(b))
    )


def find_nondeterminism_causes(starts: Sequence[Line], now: Line, run: Recipe) -> list[str]:
    """Return reasons why metrics may differ in their last bits without an error.

    Empty if they must be equal.
    """
    here, reasons = now.get("machine", {}), []
    if here.get("device") != "cpu" and not run.debug.deterministic:
        reasons.append("debug.deterministic is false")
    for start in starts:
        there = start.get("machine")
        if there is None:
            reasons.append("machine is not recorded")
            continue
        reasons += [
            f"different {name.replace('_', ' ')}"
            for name in ROUNDING_FACTORS
            if there.get(name) != here.get(name)
        ]
        if start.get("decided", {}).get("ranks") != now.get("decided", {}).get("ranks"):
            reasons.append("different number of ranks")
    return list(dict.fromkeys(reasons))
