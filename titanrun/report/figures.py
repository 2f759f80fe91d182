"""Numbers as people read them, in the same words as the pages of `titanrun ui`.

tests/ui/figures.json holds cases for this module and for ui/src/format.ts.
"""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

NONE = "–"  # noqa: RUF001
COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
BYTE_UNITS = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
METRIC_UNITS = {
    "tps": "tok/s",
    "tflops": "TFLOP/s",
    "mfu": "%",
    "memory_gib": "GiB",
    "time/step_seconds": "s",
    "time/data_seconds": "s",
}
METRIC_TITLES = {
    "loss": "Loss",
    "validation/loss": "Validation loss",
    "validation/accuracy": "Validation accuracy",
    "validation/reward_mean": "Validation reward",
    "rollout/reward_mean": "Reward",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "tps": "Tokens per second",
    "tflops": "Compute",
    "mfu": "Model FLOPs utilization",
    "memory_gib": "Memory",
    "time/step_seconds": "Time per step",
    "time/data_seconds": "Time for data",
}


def format_nonfinite(value: float) -> str:
    """Format NaN or an infinite value."""
    if math.isnan(value):
        return "NaN"
    return "∞" if value > 0 else "−∞"  # noqa: RUF001


def round_to_decimals(value: float, decimals: int) -> Decimal:
    """Round to a number of decimals, halves away from zero."""
    return Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)


def round_to_digits(value: float, digits: int) -> Decimal:
    """Round to a number of significant digits, halves away from zero."""
    exact = Decimal(value)
    return round_to_decimals(value, digits - 1 - exact.adjusted()) if value else exact


def format_loss(value: float | None) -> str:
    """Format with four decimals."""
    if value is None:
        return NONE
    return f"{round_to_decimals(value, 4)}" if math.isfinite(value) else format_nonfinite(value)


def format_exponent(value: float | None) -> str:
    """Format as two digits and a power of ten: `2.0e-3`."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return format_nonfinite(value)
    if value == 0:
        return "0"
    rounded = round_to_digits(value, 2)
    power = rounded.adjusted()
    return f"{rounded.scaleb(-power):.1f}e{power}"


def format_whole(value: float | None) -> str:
    """Format without decimals: `3,556`."""
    if value is None:
        return NONE
    return f"{round_to_decimals(value, 0):,}" if math.isfinite(value) else format_nonfinite(value)


def format_count(value: float | None) -> str:
    """Format with three digits and a unit from a million on: `6.16 M`."""
    if value is None or not math.isfinite(value):
        return format_whole(value)
    for size, unit in COUNT_UNITS:
        if value >= size:
            return f"{strip_zeros(round_to_digits(value / size, 3))} {unit}"
    return format_whole(value)


def format_bytes(value: float | None) -> str:
    """Format in binary units: `1.2 GiB`."""
    if value is None:
        return NONE
    if value < 0:
        return f"\u2212{format_bytes(-value)}"
    for size, unit in BYTE_UNITS:
        if value >= size:
            return f"{round_to_decimals(value / size, 1)} {unit}"
    return f"{value:g} B"


def format_speed(value: float | None) -> str:
    """Format tokens per second."""
    return NONE if value is None else f"{format_whole(value)} tok/s"


def format_duration(seconds: float | None) -> str:
    """Format with the two largest units: `1 h 12 min`."""
    if seconds is None:
        return NONE
    whole = math.floor(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_metric(name: str, value: float | None) -> str:
    """Format by name: losses with 4 decimals, rates as powers, others with 4 digits."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return format_nonfinite(value)
    if name in ("loss", "validation") or name.endswith("/loss"):
        return format_loss(value)
    if name == "lr":
        return format_exponent(value)
    return format_whole(value) if name in ("tps", "tokens_seen") else format_figure(value)


def format_figure(value: float) -> str:
    """Format with four significant digits, as a power of ten if it is very small or large."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return format_exponent(value)
    return strip_zeros(round_to_digits(value, 4))


def format_ticks(values: Sequence[float]) -> list[str]:
    """Format the numbers of an axis, with the same number of decimals or all as powers of ten."""
    if any(value and not 1e-3 <= abs(value) < 1e7 for value in values):
        return [format_exponent(value) for value in values]
    exact = [Decimal(f"{value:.12g}").normalize() for value in values]
    decimals = max((-int(value.as_tuple().exponent) for value in exact), default=0)
    return [f"{value:,.{max(decimals, 0) if value else 0}f}" for value in exact]


def strip_zeros(value: Decimal) -> str:
    """Format with thousands separated, without zeros behind the decimal point."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_metric_title(name: str) -> str:
    """Return a metric's name in words, or the name itself."""
    return METRIC_TITLES.get(name, name)
