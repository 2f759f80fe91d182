"""Values that any component records while a step runs, reduced over calls and ranks once, when a line is logged."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from titanrun.distributed.activation_checkpoint import is_recomputing
from titanrun.distributed.device import is_accelerator

Reduce = Literal["sum", "mean", "max", "min"]
REDUCTIONS = get_args(Reduce)

# how each operation combines two values on the device, and what changes nothing
COMBINE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
ACROSS_RANKS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

# the innermost is written to; shared by all threads, since autograd runs backward passes in its own
_open: list["Recorder"] = []


def record(name: str, value: float | Tensor, reduce: Reduce) -> None:
    """Record a value under `<component>/<name>` in the recorder that is open; without one, do nothing.

    A layer whose forward pass is computed again for the backward pass records once: the second pass is ignored.

    Args:
        name: how the value is shown, such as `moe/dropped_tokens`; always with the same `reduce`.
        value: a number, or a tensor of one element on any device. It is not waited for.
        reduce: how the values of all calls since the last logged line, and of all ranks, become one.
    """
    if _open and not is_recomputing():
        _open[-1].add(name, value, reduce)


@dataclass(slots=True)
class Total:
    """Values under one name so far, those from the host and those from the device apart; a mean is a sum with a count."""

    op: Literal["sum", "max", "min"]
    on_host: float
    on_device: Tensor | None = None


class Recorder:
    """Collects recorded values until they are flushed.

    Args:
        device: where tensors come from and are added up; float64, so that counts stay exact (float32 where there is none).
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Apple's GPUs have no float64
        self.dtype = torch.float32 if device.type == "mps" else torch.float64
        self._reductions: dict[str, Reduce] = {}
        self._totals: dict[str, Total] = {}
        self._counts: dict[str, int] = {}

    @contextmanager
    def open(self) -> Iterator["Recorder"]:
        """Receive what is recorded inside the block; an inner block's recorder receives instead of the outer's."""
        _open.append(self)
        try:
            yield self
        finally:
            _open.pop()

    def add(self, name: str, value: float | Tensor, reduce: Reduce) -> None:
        """See `record`. Raises ValueError for an unknown `reduce`, for two of them under one name, for more than one element."""
        if reduce not in REDUCTIONS:
            raise ValueError(
                f"{name} is recorded with reduce={reduce!r}; use one of {', '.join(REDUCTIONS)}"
            )
        if self._reductions.setdefault(name, reduce) != reduce:
            raise ValueError(f"{name} is recorded as {self._reductions[name]} and as {reduce}")
        total = self._totals.get(name)
        if total is None:
            op = "sum" if reduce == "mean" else reduce
            total = self._totals[name] = Total(op, NEUTRAL[op])
        if isinstance(value, Tensor):
            # a tensor made in inference mode could not be added to outside of it
            with (
                torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()
            ):
                self._add_tensor(name, total, value.detach())
        else:
            total.on_host = _combine_numbers(total.op, total.on_host, float(value))
        self._counts[name] = self._counts.get(name, 0) + 1

    def drop(self) -> None:
        """Forget everything recorded since the last flush."""
        self._totals, self._counts = {}, {}

    def flush(self, reduce_over: ProcessGroup | None = None) -> dict[str, float]:
        """Everything recorded since the last flush, reduced, by name; waits for the device once.

        Args:
            reduce_over: ranks to reduce over, in one collective for each operation. All must have recorded the same names.
        """
        means = sorted(name for name in self._totals if self._reductions[name] == "mean")
        rows = [(name, total) for name, total in sorted(self._totals.items())]
        rows += [(f"count of {name}", Total("sum", self._counts[name])) for name in means]
        rows.sort(key=lambda row: row[1].op)
        values = [
            self._reduced([total for _, total in same], reduce_over)
            for _, same in groupby(rows, key=lambda row: row[1].op)
        ]
        # the one transfer to the host
        flat = dict(
            zip(
                (name for name, _ in rows),
                torch.cat(values).tolist() if values else [],
                strict=True,
            )
        )
        for name in means:
            flat[name] /= flat.pop(f"count of {name}")
        self.drop()
        return flat

    def _add_tensor(self, name: str, total: Total, value: Tensor) -> None:
        if value.numel() != 1:
            raise ValueError(
                f"{name} is recorded with a tensor of shape {list(value.shape)}; reduce it to one value first"
            )
        own = value.reshape(()).to(
            self.device, self.dtype, non_blocking=not is_accelerator(value.device)
        )
        if total.on_device is None:
            # a copy: the caller may change its tensor, or it may be a view of a large one
            total.on_device = own.clone()
        else:
            COMBINE[total.op](total.on_device, own, out=total.on_device)

    def _reduced(self, totals: list[Total], group: ProcessGroup | None) -> Tensor:
        """One value for each of `totals`, which share their operation, on the device: [len(totals)]."""
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


def _combine_numbers(op: str, one: float, other: float) -> float:
    """As on the device: NaN wins."""
    if op == "sum":
        return one + other
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return max(one, other) if op == "max" else min(one, other)
