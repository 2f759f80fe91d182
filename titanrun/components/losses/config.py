"""The loss slot and its choices."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics


class LossConfig(ComponentConfig):
    """What is minimised. A loss returns a sum over tokens; the engine divides once by the global count of valid tokens."""

    slot: ClassVar = "loss"
    is_slot: ClassVar = True
    default_name: ClassVar = "cross_entropy"
    takes_split_logits: ClassVar = False
    """Whether the loss can do with a part of the vocabulary on each rank, as a DTensor; others get whole logits."""


class CrossEntropyConfig(LossConfig):
    """Cross entropy of the next token, in fp32."""

    name: Literal["cross_entropy"] = numerics("cross_entropy")
    builds: ClassVar = "titanrun.components.losses.cross_entropy:CrossEntropy"
    takes_split_logits: ClassVar = True
