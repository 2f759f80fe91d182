"""The converter slot: what rewrites a model on the meta device before it is parallelised."""

from typing import ClassVar

from titanrun.config.base import ComponentConfig


class ConverterConfig(ComponentConfig):
    """Rewrites modules of a model, in the order of the list."""

    slot: ClassVar = "converters"
    is_slot: ClassVar = True
