"""Straggler detection by the time of each rank's own work.

Whole steps cannot be compared, because they take equally long on all ranks.
"""

import logging
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from titanrun.distributed.device import CPU
from titanrun.distributed.device_timer import DeviceTimer
from titanrun.distributed.object_collectives import RankGroup

log = logging.getLogger(__name__)

SINGLE_RANK = RankGroup()
# number of steps per comparison: a single slow step may be chance
WINDOW_STEPS = 5
# number of consecutive slow windows after which a rank is reported
PERSISTENT = 2


class StragglerDetector:
    """Comparison of ranks by the time of their own work, once every few steps.

    A rank's own work waits for no other rank. It consists of the reading of samples and everything
    else on the host before the first forward pass, the forward passes of this rank's layers (with
    tensor or context parallelism these wait for the ranks that share them), and the update of the
    weights. Only ranks of the same pipeline stage are compared, because they do the same work.

    Args:
        ratio: ratio to the median time of the other ranks above which a rank is slow. None to
            disable.
        rank_group: ranks that train together.
        pp_rank: pipeline stage of this rank.
        device: device that computes.
    """

    def __init__(
        self,
        ratio: float | None = None,
        *,
        rank_group: RankGroup = SINGLE_RANK,
        pp_rank: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.ratio = ratio if rank_group.size > 1 else None
        self.rank_group = rank_group
        self.pp_rank = pp_rank
        self._timer = DeviceTimer(device)
        self._step_timings: list[Callable[[], float]] = []
        self._previous_slow_ranks: list[int] = []
        self._reported_ranks: list[int] = []
        self._metrics: dict[str, float] = {}

    def register_hooks(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Measure the layers of a parallelized model, and the updates."""
        if self.ratio is None:
            return
        for layer in model.get_submodule("layers").children():
            # inside the hooks that gather weights: waiting for other ranks is not measured
            layer.register_forward_pre_hook(self._start_timer)
            layer.register_forward_hook(self._stop_timer, prepend=True)
        optimizer.register_step_pre_hook(self._start_timer)
        optimizer.register_step_post_hook(self._stop_timer)

    def mark_step_start(self) -> None:
        """Start measuring the work on the host."""
        if self.ratio is not None:
            self._timer.reset()
            self._timer.start_on_host()

    def mark_collectives_start(self) -> None:
        """Stop measuring the work on the host: from here on ranks wait for each other."""
        if self.ratio is not None:
            self._timer.stop_on_host()

    def after_step(self, step: int) -> None:
        """Record a step, and compare the ranks every few steps. Collective.

        Only steps that the device has finished are compared.
        """
        if self.ratio is None:
            return
        self._step_timings.append(self._timer.pop_elapsed())
        if len(self._step_timings) == 2 * WINDOW_STEPS:
            own = median(seconds() for seconds in self._step_timings[:WINDOW_STEPS])
            del self._step_timings[:WINDOW_STEPS]
            self._compare(step, self.rank_group.all_gather_results(lambda: (self.pp_rank, own)))

    def pop_metrics(self) -> dict[str, float]:
        """Return the slow rank since the last call as metrics, or nothing if there is none."""
        found, self._metrics = self._metrics, {}
        return found

    def _compare(self, step: int, measurements: Sequence[tuple[int, float]]) -> None:
        ratios = {
            rank: own / compute_peer_median(rank, measurements)
            for rank, (_, own) in enumerate(measurements)
            if compute_peer_median(rank, measurements) > 0
        }
        slow = [rank for rank, ratio in ratios.items() if ratio > (self.ratio or 0)]
        lasting = [rank for rank in slow if rank in self._previous_slow_ranks]
        self._previous_slow_ranks = slow
        for rank in lasting:
            self._metrics |= {"guard/slow_rank": rank, "guard/slow_rank_ratio": ratios[rank]}
            if rank not in self._reported_ranks:
                log.warning(
                    "straggler: rank %d at step %d computes %.3g s per step, "
                    "the median of the other ranks is %.3g s",
                    rank, step, measurements[rank][1], compute_peer_median(rank, measurements),
                )  # fmt: skip
        self._reported_ranks = lasting

    def _start_timer(self, *_: Any) -> None:
        self._timer.start()

    def _stop_timer(self, *_: Any) -> None:
        self._timer.stop()


def compute_peer_median(rank: int, measurements: Sequence[tuple[int, float]]) -> float:
    """Return the median time in seconds of the other ranks of the same stage.

    Return 0 if there are none.
    """
    others = [
        own
        for other, (stage, own) in enumerate(measurements)
        if other != rank and stage == measurements[rank][0]
    ]
    return median(others) if others else 0.0
