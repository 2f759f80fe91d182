"""Values that components record during a step, reduced over calls and ranks at logging."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.distributed.activation_checkpoint import is_recomputing
from titanrun.distributed.device import is_accelerator

Reduction = Literal["sum", "mean", "max", "min"]
REDUCTIONS = get_args(Reduction)

# for each reduction, how it combines two values on the device, and its neutral element
COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
ACROSS_RANKS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# the innermost receives values; shared by all threads, since autograd runs backward passes in its
# own
_active: list["StepMetrics"] = []


def record_metric(
    name: str, value: float | Tensor, reduce: Reduction, *, weight: Tensor | None = None
) -> None:
    """Record a value under `<component>/<name>` in the open StepMetrics, if there is one.

    A layer whose forward pass is recomputed for the backward pass records once: the second forward
    pass is ignored.

    Args:
        name: Name of the metric, such as `moe/dropped_tokens`, always with the same `reduce`.
        value: Number, or tensor of one element on any device. It is not waited for.
        reduce: Reduction of the values of all calls since the last logged line, and of all ranks.
        weight: Weight of the value in a mean, such as the number of pairs of a batch. None means 1.
            If the weights of all calls are 0, the metric is left out.
    """
    if _active and not is_recomputing():
        _active[-1].add(name, value, reduce, weight=weight)


@dataclass(slots=True)
class MetricSum:
    """Values under one name so far, from host and device; a mean is a sum with a count."""

    op: Literal["sum", "max", "min"]
    on_host: float
    on_device: Tensor | None = None


class StepMetrics:
    """Collector of recorded values until they are flushed.

    Args:
        device: Device of recorded tensors and of their sums, which are in float64, so that counts
            stay exact (float32 on devices without it).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Apple's GPUs have no float64
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self._reductions: dict[str, Reduction] = {}
        self._sums: dict[str, MetricSum] = {}
        self._counts: dict[str, int] = {}
        self._weights: dict[str, MetricSum] = {}

    @contextmanager
    def open(self) -> Iterator["StepMetrics"]:
        """Receive the values recorded inside the block, instead of an enclosing block."""
        _active.append(self)
        try:
            yield self
        finally:
            _active.pop()

    def add(
        self,
        name: str,
        value: float | Tensor,
        reduce: Reduction,
        *,
        weight: Tensor | None = None,
    ) -> None:
        """Add a value; see `record_metric`.

        Raises:
            ValueError: For an unknown `reduce`, for two different ones under one name, and for a
                tensor with more than one element.
        """
        if reduce not in REDUCTIONS:
            raise ValueError(
                f"{name} is recorded with reduce={reduce!r}; use one of {', '.join(REDUCTIONS)}"
            )
        if self._reductions.setdefault(name, reduce) != reduce:
            raise ValueError(f"{name} is recorded as {self._reductions[name]} and as {reduce}")
        total = self._sums.get(name)
        if total is None:
            op = "sum" if reduce == "mean" else reduce
            total = self._sums[name] = MetricSum(op, NEUTRAL[op])
        if weight is not None:
            assert reduce == "mean", "only means have weights"
            value = value * weight
            weights = self._weights.setdefault(name, MetricSum("sum", 0.0))
            self._add_tensor(name, weights, weight.detach())
        if isinstance(value, Tensor):
            # outside inference mode, a tensor created in it could not be added to
            with (
                torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
            ):
                self._add_tensor(name, total, value.detach())
        else:
            total.on_host = _combine_numbers(total.op, total.on_host, float(value))
        self._counts[name] = self._counts.get(name, 0) + 1

    def reset(self) -> None:
        """Discard everything recorded since the last flush."""
        self._sums, self._counts, self._weights = {}, {}, {}

    def flush(self, group: ProcessGroup | None = None) -> dict[str, float]:
        """Reduce everything recorded since the last flush, by name; wait for the device once.

        Args:
            group: Ranks to reduce over, in one collective per operation. All must have recorded the
                same names.
        """
        means = sorted(name for name in self._sums if self._reductions[name] == "mean")
        rows = [(name, total) for name, total in sorted(self._sums.items())]
        rows += [
            (
                f"count of {name}",
                self._weights.get(name) or MetricSum("sum", self._counts[name]),
            )
            for name in means
        ]
        rows.sort(key=lambda row: row[1].op)
        values = [
            self._reduce([total for _, total in same], group)
            for _, same in groupby(rows, key=lambda row: row[1].op)
        ]
        # the only transfer to the host
        flat = dict(
            zip(
                (name for name, _ in rows),
                torch.cat(values).tolist() if values else [],
                strict=True,
            )
        )
        for name in means:
            count = flat.pop(f"count of {name}")
            if count:
                flat[name] /= count
            else:
                del flat[name]
        self.reset()
        return flat

    def _add_tensor(self, name: str, total: MetricSum, value: Tensor) -> None:
        if value.numel() != 1:
            raise ValueError(
                f"{name} is recorded with a tensor of shape {list(value.shape)}; "
                "reduce it to one value first"
            )
        own = value.reshape(()).to(
            self.device, self.dtype, non_blocking=not is_accelerator(value.device)
        )
        if total.on_device is None:
            # a copy: the caller may change its tensor, or it may be a view of a large one
            total.on_device = own.clone()
        else:
            COMBINE[total.op](total.on_device, own, out=total.on_device)

    def _reduce(self, totals: list[MetricSum], group: ProcessGroup | None) -> Tensor:
        """Return one value for each of `totals`, which share their operation, [len(totals)]."""
        op = totals[0].op
        from_host = torch.tensor([total.on_host for total in totals], dtype=self.dtype).to(
            self.device
        )
        neutral = torch.full((), NEUTRAL[op], dtype=self.dtype, device=self.device)
        from_device = torch.stack(
            [neutral if total.on_device is None else total.on_device for total in totals]
        )
        values = COMBINE[op](from_host, from_device)
        if group is not None:
            dist.all_reduce(values, ACROSS_RANKS[op], group=group)
        return values


@cache
def disable_compilation() -> None:
    """Keep torch's compiler away from recorded values.

    Compiled functions are interrupted to record a value, and the recording itself would be compiled
    next: the values of all calls but the first would be lost, and new counts be new graphs.
    """
    # decorated where it is defined, it would import the compiler in every run
    StepMetrics.add = torch.compiler.disable(StepMetrics.add)  # type: ignore[method-assign]


def _combine_numbers(op: str, one: float, other: float) -> float:
    """Combine two numbers as on the device: NaN wins."""
    if op == "sum":
        return one + other
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return max(one, other) if op == "max" else min(one, other)
