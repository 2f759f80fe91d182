"""What is drawn, and the round numbers beside it. Torch-free, and no dependency: a curve is a list of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line through points; a point that is not finite, or not positive on a log scale, is a gap.

    `low` and `high`, as many as points or none, bound a band around the line.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot: its range and how it is scaled."""

    low: float
    high: float
    scale: Scale = "linear"

    def share(self, value: float) -> float | None:
        """Where a value lies, 0 at the low end and 1 at the high one; None where it cannot be drawn."""
        if not math.isfinite(value) or (self.scale == "log" and value <= 0):
            return None
        return (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def ticks(self, most: int) -> list[float]:
        """Round numbers within the range, `most` or fewer: steps of 1, 2 or 5 times a power of ten, on a log scale powers of ten."""
        if self.scale == "log":
            powers = [
                10.0**power
                for power in range(
                    math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1
                )
            ]
            if len(powers) >= 2:
                return powers[:: math.ceil(len(powers) / most)]
        step = round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.scale == "log" else value


def axis(values: Sequence[float], scale: Scale = "linear") -> Axis:
    """The axis that holds all values that can be drawn; one that is a point gets some room."""
    drawn = [value for value in values if math.isfinite(value) and (scale == "linear" or value > 0)]
    low, high = (min(drawn), max(drawn)) if drawn else (1.0, 2.0)
    if low == high:
        return Axis(low / 2, high * 2, scale) if low > 0 else Axis(low - 1, high + 1, scale)
    return Axis(low, high, scale)


def axes_of(curves: Sequence[Curve], x_scale: Scale, y_scale: Scale) -> tuple[Axis, Axis]:
    """The x axis and the y axis that hold all curves with their bands."""
    across = axis([value for curve in curves for value in curve.x], x_scale)
    return across, axis(
        [value for curve in curves for line in (curve.y, curve.low, curve.high) for value in line],
        y_scale,
    )


def round_step(at_least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `at_least`."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(
        factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9)
    )


def label(value: float) -> str:
    """A number beside an axis, in as few signs as it takes."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.6g}"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    mantissa, _, power = f"{value:.3e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
