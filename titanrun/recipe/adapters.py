"""Which adapters a run trains."""

from titanrun.components.converters.config import LoraConfig
from titanrun.recipe.recipe import Recipe


def lora_of(run: Recipe) -> LoraConfig | None:
    """The converter that gives the model low-rank adapters; None where everything is trained."""
    return next((converter for converter in run.converters if isinstance(converter, LoraConfig)), None)
