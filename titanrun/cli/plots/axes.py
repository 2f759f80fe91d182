"""Curves and axes with round tick values, without torch or other dependencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Named line through points.

    A point that is not finite, or not positive on a log scale, is a gap. `low` and `high` bound a
    band around the line; each has as many values as there are points, or none. With
    `has_start_mark` its first point is marked: it goes on from another curve.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    has_start_mark: bool = False

    def find_start(self, across: "Axis", up: "Axis") -> tuple[float, float] | None:
        """Return the first point that can be drawn if it is marked, else None."""
        if not self.has_start_mark:
            return None
        return next(
            (
                (x, y)
                for x, y in zip(self.x, self.y, strict=True)
                if across.to_fraction(x) is not None and up.to_fraction(y) is not None
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction of a plot: its range and its scale."""

    low: float
    high: float
    scale: Scale = "linear"

    def to_fraction(self, value: float) -> float | None:
        """Return the position of a value, 0 at the low end and 1 at the high end.

        Return None if it cannot be drawn.
        """
        if not math.isfinite(value) or (self.scale == "log" and value <= 0):
            return None
        return (self._at(value) - self._at(self.low)) / (self._at(self.high) - self._at(self.low))

    def compute_ticks(self, max_count: int) -> list[float]:
        """Return at most `max_count` round values within the range.

        Steps are 1, 2 or 5 times a power of ten, on a log scale powers of ten.
        """
        if self.scale == "log":
            powers = [
                10.0**power
                for power in range(
                    math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1
                )
            ]
            if len(powers) >= 2:
                return powers[:: math.ceil(len(powers) / max_count)]
        step = compute_round_step((self.high - self.low) / max_count)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _at(self, value: float) -> float:
        return math.log10(value) if self.scale == "log" else value


def build_axis(values: Sequence[float], scale: Scale = "linear") -> Axis:
    """Build an axis for all values that can be drawn; a single point gets a margin."""
    drawn = [value for value in values if math.isfinite(value) and (scale == "linear" or value > 0)]
    low, high = (min(drawn), max(drawn)) if drawn else (1.0, 2.0)
    if low == high:
        return Axis(low / 2, high * 2, scale) if low > 0 else Axis(low - 1, high + 1, scale)
    return Axis(low, high, scale)


def build_axes(curves: Sequence[PlotCurve], x_scale: Scale, y_scale: Scale) -> tuple[Axis, Axis]:
    """Build the x axis and the y axis for all curves with their bands."""
    across = build_axis([value for curve in curves for value in curve.x], x_scale)
    return across, build_axis(
        [value for curve in curves for line in (curve.y, curve.low, curve.high) for value in line],
        y_scale,
    )


def compute_round_step(at_least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below `at_least`."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(
        factor * power for factor in (1, 2, 5, 10) if factor * power >= at_least * (1 - 1e-9)
    )


def format_tick(value: float) -> str:
    """Format a tick value with as few characters as possible."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.6g}"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    mantissa, _, power = f"{value:.3e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
