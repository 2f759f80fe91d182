"""Settings with which the best checkpoint is kept: validations at the steps of checkpoints."""

from collections.abc import Mapping
from math import gcd, lcm
from typing import Any

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.validation.config import ValidationConfig

# saves of a run whose interval is chosen here
USUAL_SAVES = 10
NO_DOCUMENTS = ("images", "tokens", "webdataset")
"""Datasets of which no documents can be held out."""
STREAMS = ("c4", "c4_validation")
"""Datasets that are streamed by default."""
VALIDATE = "validation.enable: true"


def list_needed_settings(data: Any) -> list[str]:
    """Return the settings beside those of a recipe with which checkpoint.keep_best: 1 has effect.

    `data` is plain data, as written or resolved.
    """
    section, validation, training = (
        get_written_section(data, name) for name in ("checkpoint", "validation", "training")
    )
    needed = ["checkpoint.enable: true"] if section.get("enable") is False else []
    needed += list_validation_settings(data, validation, training.get("dataset"))
    if data.get("kind") == "rl" or section.get("keep_latest_k") == 0:
        return needed
    interval = section.get("interval", CheckpointConfig.model_fields["interval"].default)
    freq = validation.get("freq", ValidationConfig.model_fields["freq"].default)
    steps = training.get("steps")
    if type(freq) is not int or freq < 1 or not isinstance(interval, int | str) or not interval:
        return needed
    known = steps if type(steps) is int and steps > 0 else None
    # a run of epochs may be shorter than the interval
    is_sure = known is not None or interval == freq
    is_fine = is_sure and describe_choice(interval, freq, known) is None
    return needed if is_fine else needed + list_intervals(interval, freq, known)


def list_validation_settings(data: Any, validation: Mapping[str, Any], dataset: Any) -> list[str]:
    """Return the settings that a recipe lacks in order to be validated."""
    enable, held_out = validation.get("enable"), validation.get("dataset")
    has_share, is_named = validation.get("holdout") is not None, held_out not in (None, "auto")
    name = dataset.get("name") if isinstance(dataset, dict) else dataset
    is_bundled = isinstance(name, str) and name.startswith("tiny")
    if name in NO_DOCUMENTS and not is_named:
        return [VALIDATE, f"validation.dataset: {{name: {name}, path: PATH}}"]
    has_data = has_share or is_named or is_bundled or data.get("kind") == "rl"
    is_on = enable is True or (enable is not False and (has_share or not has_data))
    needed = [] if is_on else [VALIDATE]
    if not has_data:
        needed.append("validation.holdout: 0.05")
    reads_all = has_share or not has_data
    if reads_all and validation.get("steps") is None and is_streamed_dataset(dataset):
        needed.append("validation.steps: 50")
    return needed


def is_streamed_dataset(dataset: Any) -> bool:
    """Return whether a dataset, as plain data, or one of its sources is read as a stream."""
    if isinstance(dataset, list):
        return any(is_streamed_dataset(item) for item in dataset)
    if not isinstance(dataset, dict):
        return dataset in STREAMS
    if dataset.get("name") in STREAMS and dataset.get("streaming", "auto") == "auto":
        return dataset.get("max_documents") is None
    return dataset.get("streaming") is True or any(
        is_streamed_dataset(dataset.get(key)) for key in ("sources", "dataset")
    )


def get_written_section(data: Any, name: str) -> Mapping[str, Any]:
    """Return a section of a recipe, empty if there is none."""
    section = data.get(name)
    return section if isinstance(section, dict) else {}


def describe_choice(interval: int | str, freq: int, steps: int | None) -> str | None:
    """Return how many checkpoints are validated, None if all are, and there are several."""
    if isinstance(interval, str):
        return "the checkpoints that happen to be validated"
    if steps is None:
        every = freq // gcd(interval, freq)
        return None if every == 1 else f"1 in {every} checkpoints"
    # the last step is always saved and validated
    saved, validated = (-(-steps // each) for each in (interval, lcm(interval, freq)))
    if validated == saved > 1:
        return None
    return f"{validated} of {saved} checkpoint{'s' * (saved > 1)}"


def format_interval(interval: int | str) -> str:
    """Format an interval such as `500 steps`, `step` or `10m`."""
    if isinstance(interval, str):
        return interval
    return "step" if interval == 1 else f"{interval} steps"


def list_intervals(interval: int | str, freq: int, steps: int | None) -> list[str]:
    """Return the settings with which every checkpoint is validated."""
    if steps is not None and steps < 2 * freq:
        both = max(1, steps // USUAL_SAVES)
        return [f"validation.freq: {both}", f"checkpoint.interval: {both}"]
    if steps is None:  # a run may be short
        several = 1
    elif isinstance(interval, int) and interval < steps:
        several = max(1, interval // freq)
    else:
        several = max(1, steps // freq // USUAL_SAVES)
    return [f"checkpoint.interval: {several * freq}"]
