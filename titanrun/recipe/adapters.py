"""Lookups of the adapters and the quantization-aware training of a run."""

from titanrun.components.converters.config import AdapterConfig, QatConfig
from titanrun.recipe.recipe import Recipe


def find_lora_converter(run: Recipe) -> AdapterConfig | None:
    """Return the converter that adds low-rank adapters, or None if all weights are trained."""
    return next(
        (converter for converter in run.converters if isinstance(converter, AdapterConfig)), None
    )


def find_qat_converter(run: Recipe) -> QatConfig | None:
    """Return the converter that rounds weights in every forward pass, or None."""
    return next(
        (converter for converter in run.converters if isinstance(converter, QatConfig)), None
    )
