"""Python garbage collection at chosen steps, so that all ranks pause together."""

import gc
import logging
from types import TracebackType
from typing import Self

import torch

from titanrun.config.pluralize import pluralize
from titanrun.training.config import TrainingConfig

log = logging.getLogger(__name__)

# only objects of the steps since the last collection: older objects need no second scan
YOUNG_GENERATION = 1
ALL_GENERATIONS = 2


class GarbageCollection:
    """Context manager that replaces automatic garbage collection by `after_step`.

    `after_step` collects every `gc_freq` steps.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.interval_steps = config.gc_freq
        self.reports_cycles = config.gc_debug
        self._was_automatic = False

    def __enter__(self) -> Self:
        self._was_automatic = gc.isenabled()
        gc.disable()
        # cycles of the time before are not the first step's
        gc.collect(ALL_GENERATIONS if self.reports_cycles else YOUNG_GENERATION)
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
        """Collect garbage if `step` is due.

        With gc_debug, run a full collection after every step and log how many tensors were held by
        cycles.
        """
        if self.reports_cycles:
            count = collect_tensor_cycles()
            if count:
                log.warning(
                    "step %d: reference cycles kept %s alive until garbage collection",
                    step,
                    pluralize(count, "tensor"),
                )
        elif step % self.interval_steps == 0:
            gc.collect(YOUNG_GENERATION)


def collect_tensor_cycles() -> int:
    """Run a full collection and return the number of tensors held only by cycles."""
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect(ALL_GENERATIONS)
    # by its type: isinstance() asks a weak proxy for the class of its object, which may be gone
    count = sum(issubclass(type(thing), torch.Tensor) for thing in gc.garbage)
    gc.garbage.clear()
    gc.set_debug(flags)
    gc.collect(ALL_GENERATIONS)
    return count
