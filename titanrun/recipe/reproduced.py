"""Whether a run that was trained again says the same numbers, and how alike two machines must be for that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from titanrun.recipe.recipe import Recipe

Line = Mapping[str, Any]
COMPARED = ("loss", "grad_norm", "validation/loss")
# other values of these give other roundings
DECIDES_ROUNDING = (
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
# relative, of losses; sums in another order differ by rounding, which grows with the steps
TOLERANCE = 0.01
# a norm of gradients moves more than the loss does
GRAD_NORM_FACTOR = 10


@dataclass(frozen=True, slots=True)
class Unequal:
    """The first number that is not as it was recorded."""

    step: int
    name: str
    recorded: float
    found: float | None

    def __str__(self) -> str:
        now = "nothing" if self.found is None else repr(self.found)
        return f"step {self.step}: {self.name} was {self.recorded!r}, now {now}"


def first_difference(
    recorded: Sequence[Line], found: Sequence[Line], tolerance: float | None
) -> Unequal | None:
    """The first of the steps that both have where a number differs: in a bit, or relatively by more than the tolerance."""
    by_step = {line["step"]: line for line in found}
    for line in recorded:
        again = by_step.get(line["step"])
        for name in COMPARED if again is not None else ():
            # how often a run validates may depend on where it stopped
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
            if name not in again or not is_equal(line[name], again[name], allowed):
                return Unequal(line["step"], name, line[name], again.get(name))
    return None


def is_equal(a: float, b: float, tolerance: float | None) -> bool:
    """Whether two numbers are the same: every bit of them, or within a relative tolerance; NaN is NaN."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return (
        tolerance is not None
        and math.isfinite(a)
        and math.isfinite(b)
        and abs(a - b) <= tolerance * max(abs(a), abs(b))
    )


def against_bits(starts: Sequence[Line], now: Line, run: Recipe) -> list[str]:
    """Why numbers may differ in their last bits though all is well; empty where they may not."""
    here, reasons = now.get("machine", {}), []
    if here.get("device") != "cpu" and not run.debug.deterministic:
        reasons.append("debug.deterministic is false")
    for start in starts:
        there = start.get("machine")
        if there is None:
            reasons.append("the machine is not recorded")
            continue
        reasons += [
            f"another {name.replace('_', ' ')}"
            for name in DECIDES_ROUNDING
            if there.get(name) != here.get(name)
        ]
        if start.get("decided", {}).get("ranks") != now.get("decided", {}).get("ranks"):
            reasons.append("another number of ranks")
    return list(dict.fromkeys(reasons))
