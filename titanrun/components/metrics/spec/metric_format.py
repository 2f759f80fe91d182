"""Format of metrics for people: selection, order, labels and digits."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormattedMetric:
    """One metric as text: a label before the number, or a unit after it."""

    name: str
    number: str
    label: str = ""
    unit: str = ""

    @property
    def text(self) -> str:
        """Full text, such as `loss 4.1234` or `12,345 tok/s`."""
        return " ".join(part for part in (self.label, self.number, self.unit) if part)


def format_decimals(value: float, decimals: int) -> str:
    """Format with a number of decimals, or a small value with three digits: `3.21e-05`."""
    is_small = 0 < abs(value) < 10.0 ** (1 - decimals)
    return f"{value:.3g}" if is_small else f"{value:.{decimals}f}"


def format_step_loss(value: float) -> str:
    """Format a loss in a fixed width."""
    return f"{format_decimals(value, 5):>8}"


# metric -> label, format of the number (fixed widths keep columns aligned), unit
METRIC_FORMATS: dict[str, tuple[str, Callable[[float], str], str]] = {
    "loss": ("loss", format_step_loss, ""),
    "grad_norm": ("grad norm", "{:8.4f}".format, ""),
    "lr": ("lr", "{:.3e}".format, ""),
    "tps": ("", "{:9,.0f}".format, "tok/s"),
    "tflops": ("", "{:7.2f}".format, "TFLOPs"),
    "mfu": ("", "{:5.1f}%".format, "MFU"),
    "memory_gib": ("", "{:6.2f}".format, "GiB"),
    "validation/loss": ("validation loss", format_step_loss, ""),
    "validation/accuracy": ("accuracy", "{:6.1%}".format, ""),
    "rollout/reward_mean": ("reward", "{:7.4f}".format, ""),
    "rl/age_max": ("age", "{:2.0f}".format, ""),
    "validation/reward_mean": ("validation reward", "{:7.4f}".format, ""),
}

# written to files but not shown to people
HIDDEN_METRICS = {"step", "tokens_seen", "time/step_seconds", "time/data_seconds"}
FURTHER_LOSS = re.compile(r"validation/(.+)/loss")
HIDDEN_PREFIXES = ("data/", "rl/", "rollout/", "validation/")


def format_metrics(values: Mapping[str, float]) -> list[FormattedMetric]:
    """Return the metrics to show: the known ones in their order, then all others recorded."""
    known = [
        FormattedMetric(name, format_number(values[name]), label, unit)
        for name, (label, format_number, unit) in METRIC_FORMATS.items()
        if name in values
    ]
    further = [
        FormattedMetric(name, format_step_loss(values[name]), f"{dataset} loss")
        for name, dataset in find_dataset_losses(values).items()
    ]
    others = [
        name
        for name in values
        if name not in METRIC_FORMATS
        and name not in HIDDEN_METRICS
        and not name.startswith(HIDDEN_PREFIXES)
    ]
    shown = [FormattedMetric(name, f"{values[name]:.4g}", name) for name in others]
    return [*known, *further, *shown]


def find_dataset_losses(names: Iterable[str]) -> dict[str, str]:
    """Return the losses on the datasets of validation.further, with the names of the datasets."""
    found = {name: FURTHER_LOSS.fullmatch(name) for name in names}
    return {name: match[1] for name, match in found.items() if match is not None}


def format_elapsed_time(seconds: float) -> str:
    """Format as `9:05` or `2:09:05`, from one day on as `3d 02:09`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
