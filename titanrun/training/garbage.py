"""Python's garbage collector under control: collections happen at chosen steps, so that all ranks pause together."""

import gc
import logging
from types import TracebackType
from typing import Self

import torch

from titanrun.training.config import TrainingConfig

log = logging.getLogger(__name__)

# the young objects of the steps since the last collection; what lives since the start need not be walked again
YOUNG = 1
EVERYTHING = 2


class GarbageCollection:
    """While entered, the automatic collections are off and `after_step` collects every `gc_freq` steps."""

    def __init__(self, config: TrainingConfig) -> None:
        self.every_steps = config.gc_freq
        self.reports_cycles = config.gc_debug
        self._was_automatic = False

    def __enter__(self) -> Self:
        self._was_automatic = gc.isenabled()
        gc.disable()
        gc.collect(YOUNG)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._was_automatic:
            gc.enable()

    def after_step(self, step: int) -> None:
        """Collects when `step` is due; with gc_debug everything, each step, and says which cycles held tensors."""
        if self.reports_cycles:
            count = collect_tensor_cycles()
            if count:
                log.warning(
                    "step %d: reference cycles held %d tensors, whose memory is free only now",
                    step,
                    count,
                )
        elif step % self.every_steps == 0:
            gc.collect(YOUNG)


def collect_tensor_cycles() -> int:
    """Collects everything and counts the tensors that only cycles held."""
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect(EVERYTHING)
    count = sum(isinstance(thing, torch.Tensor) for thing in gc.garbage)
    gc.garbage.clear()
    gc.set_debug(flags)
    gc.collect(EVERYTHING)
    return count
