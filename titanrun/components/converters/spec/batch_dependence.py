"""Converters whose rounding of a sequence depends on the sequences in the same batch."""

from titanrun.components.converters.config import (
    ConverterConfig,
    Float8LinearConfig,
    Nvfp4LinearConfig,
)


def depends_on_batch(converter: ConverterConfig) -> bool:
    """Return whether a converter scales all inputs of a module by their largest value."""
    if isinstance(converter, Float8LinearConfig):
        return converter.scales == "tensorwise"
    return isinstance(converter, Nvfp4LinearConfig)
