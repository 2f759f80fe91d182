"""Which adapters a run trains, and what it is trained to be quantised to."""

from titanrun.components.converters.config import AdapterConfig, QatConfig
from titanrun.recipe.recipe import Recipe


def lora_of(run: Recipe) -> AdapterConfig | None:
    """The converter that gives the model low-rank adapters; None where everything is trained."""
    return next(
        (converter for converter in run.converters if isinstance(converter, AdapterConfig)), None
    )


def qat_of(run: Recipe) -> QatConfig | None:
    """The converter that rounds weights in every forward pass; None where nothing does."""
    return next(
        (converter for converter in run.converters if isinstance(converter, QatConfig)), None
    )
