"""Finds a rank that all others wait for: by the time of its own work, since whole steps take equally long on all ranks."""

import logging
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from titanrun.distributed.agreement import Ranks
from titanrun.distributed.device import CPU
from titanrun.distributed.stopwatch import Stopwatch

log = logging.getLogger(__name__)

ALONE = Ranks()
# steps that are looked at together: one that was slow by chance says nothing
WINDOW = 5
# so many windows in a row a rank must be slow
PERSISTENT = 2


class StragglerWatch:
    """Measures what this rank does in a step without waiting for another, and compares ranks every few steps.

    That is: reading rows, all else on the host before the first pass, the forward passes of the layers that it holds (with tensor or
    context parallelism these wait for the ranks that share them), and the update of the weights. Only ranks of the same pipeline stage
    are compared: they do the same work.

    Args:
        ratio: how many times as long as the median of the others makes a rank slow; None: nobody is.
        ranks: that train together.
        stage: what ranks have in common that do the same work.
        device: where they compute.
    """

    def __init__(
        self,
        ratio: float | None = None,
        *,
        ranks: Ranks = ALONE,
        stage: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.ratio = ratio if ranks.count > 1 else None
        self.ranks = ranks
        self.stage = stage
        self._stopwatch = Stopwatch(device)
        self._done: list[Callable[[], float]] = []
        self._slow_before: list[int] = []
        self._told: list[int] = []
        self._found: dict[str, float] = {}

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Measures the layers of a laid out model, and the updates."""
        if self.ratio is None:
            return
        for layer in model.get_submodule("layers").children():
            # inside of what gathers its weights: waiting for others is none of its work
            layer.register_forward_pre_hook(self._begin)
            layer.register_forward_hook(self._end, prepend=True)
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def begin_step(self) -> None:
        """The ranks leave the last step."""
        if self.ratio is not None:
            self._stopwatch.reset()
            self._stopwatch.start_on_host()

    def begin_passes(self) -> None:
        """From here on ranks wait for each other."""
        if self.ratio is not None:
            self._stopwatch.stop_on_host()

    def after_step(self, step: int) -> None:
        """A step is done; the time of earlier ones, which the device has finished, is compared now and then. All ranks call it."""
        if self.ratio is None:
            return
        self._done.append(self._stopwatch.take())
        if len(self._done) == 2 * WINDOW:
            own = median(seconds() for seconds in self._done[:WINDOW])
            del self._done[:WINDOW]
            self._compare(step, self.ranks.together(lambda: (self.stage, own)))

    def take(self) -> dict[str, float]:
        """The slow rank since the last call as metrics; empty where there was none."""
        found, self._found = self._found, {}
        return found

    def _compare(self, step: int, told: Sequence[tuple[int, float]]) -> None:
        ratios = {
            rank: own / others_median(rank, told)
            for rank, (_, own) in enumerate(told)
            if others_median(rank, told) > 0
        }
        slow = [rank for rank, ratio in ratios.items() if ratio > (self.ratio or 0)]
        lasting = [rank for rank in slow if rank in self._slow_before]
        self._slow_before = slow
        for rank in lasting:
            self._found |= {"guard/slow_rank": rank, "guard/slow_rank_ratio": ratios[rank]}
            if rank not in self._told:
                log.warning(
                    "rank %d is slow at step %d: its own work takes %.3g s of a step, the others' %.3g s, and they wait for it",
                    rank, step, told[rank][1], others_median(rank, told),
                )  # fmt: skip
        self._told = lasting

    def _begin(self, *_: Any) -> None:
        self._stopwatch.start()

    def _end(self, *_: Any) -> None:
        self._stopwatch.stop()


def others_median(rank: int, told: Sequence[tuple[int, float]]) -> float:
    """The median of the others that do the same work; 0 where there are none."""
    others = [
        own for other, (stage, own) in enumerate(told) if other != rank and stage == told[rank][0]
    ]
    return median(others) if others else 0.0
