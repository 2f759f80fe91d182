"""How metrics read to a person: which are shown, in which order, under which label, with how many digits."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    """One metric as text: a label before the number, or a unit after it."""

    name: str
    number: str
    label: str = ""
    unit: str = ""

    @property
    def text(self) -> str:
        """All of it, such as `loss 4.1234` or `12,345 tok/s`."""
        return " ".join(part for part in (self.label, self.number, self.unit) if part)


# metric -> label, format of the number (fixed widths keep columns in place), unit
SHOWN: dict[str, tuple[str, str, str]] = {
    "loss": ("loss", "{:8.5f}", ""),
    "grad_norm": ("grad norm", "{:8.4f}", ""),
    "lr": ("lr", "{:.3e}", ""),
    "tps": ("", "{:9,.0f}", "tok/s"),
    "tflops": ("", "{:7.2f}", "TFLOPs"),
    "mfu": ("", "{:5.1f}%", "MFU"),
    "memory_gib": ("", "{:6.2f}", "GiB"),
    "validation/loss": ("validation loss", "{:8.5f}", ""),
    "rollout/reward_mean": ("reward", "{:7.4f}", ""),
    "rollout/age_max": ("age", "{:2.0f}", ""),
    "validation/reward_mean": ("validation reward", "{:7.4f}", ""),
}

# written to files but no news to a person
SILENT = {"step", "tokens_seen", "time/step_seconds", "time/data_seconds"}
SILENT_GROUPS = ("rl/", "rollout/", "validation/")


def readings(values: Mapping[str, float]) -> list[Reading]:
    """The metrics to show: the known ones in their order, then whatever else was recorded."""
    known = [
        Reading(name, number.format(values[name]), label, unit)
        for name, (label, number, unit) in SHOWN.items()
        if name in values
    ]
    others = [
        name
        for name in values
        if name not in SHOWN and name not in SILENT and not name.startswith(SILENT_GROUPS)
    ]
    return known + [Reading(name, f"{values[name]:.4g}", name) for name in others]


def duration(seconds: float) -> str:
    """`9:05` or `2:09:05`, for a day and more `3d 02:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
