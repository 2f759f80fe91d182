"""Watches that loss and gradients stay numbers: asks before the weights are touched where that costs nothing, else afterwards."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.processes import is_open
from titanrun.training.spikes import SpikeWatch

EXIT_NON_FINITE = 5
CPU = torch.device("cpu")
Policy = Literal["stop", "skip", "rollback"]


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step's loss and gradient norm as Python numbers."""

    step: int
    loss: float
    grad_norm: float

    @property
    def bad(self) -> str | None:
        """Which of the two is NaN or infinite, the loss first; None where both are numbers."""
        named = {"loss": self.loss, "gradient norm": self.grad_norm}
        return next((name for name, value in named.items() if not math.isfinite(value)), None)


class NonFinite(Exception):
    """A loss, gradients or weights that are NaN or infinite.

    Args:
        step: the step that gave it.
        name: what is no number.
        value: what it is instead.
        because: why the run does not go on, where its recipe asks for that.
    """

    exit_code = EXIT_NON_FINITE

    def __init__(self, *, step: int, name: str, value: float | str, because: str = "") -> None:
        self.step = step
        self.what: dict[str, Any] = {"name": name, "value": value}
        super().__init__(f"{name} is {value} at step {step}{because and f', and {because}'}")

    @classmethod
    def of(cls, numbers: StepNumbers) -> "NonFinite":
        """The error of a bad step."""
        value = numbers.grad_norm if math.isfinite(numbers.loss) else numbers.loss
        return cls(step=numbers.step, name=numbers.bad or "loss", value=value)

    def because(self, reason: str) -> "NonFinite":
        """The same, with the reason why the run does not go on."""
        return NonFinite(step=self.step, **self.what, because=reason)


@dataclass(slots=True)
class FiniteGuard:
    """Remembers each step's loss and gradient norm.

    On a CPU, and where the policy needs it, a step is judged before its update. On an accelerator that would wait for the device:
    with the policy stop the numbers stay there until somebody reads them, all in one transfer.

    Args:
        policy: what a bad step leads to.
        device: where the numbers are.
        spikes: hears every loss that is a number.
        judges: false where the numbers mean nothing, since other ranks are only simulated.
    """

    policy: Policy = "stop"
    device: torch.device = CPU
    spikes: SpikeWatch = field(default_factory=SpikeWatch)
    judges: bool = True
    _steps: list[int] = field(default_factory=list)
    _values: list[Tensor] = field(default_factory=list)
    _last: StepNumbers | None = None

    @property
    def last(self) -> StepNumbers:
        """The newest numbers that are known."""
        assert self._last is not None, "no step was watched"
        return self._last

    def accepts(self, step: int, *, loss: Tensor, grad_norm: Tensor) -> bool:
        """Whether the step may update the weights; the same answer on all ranks. True where that is only known later."""
        if self.policy == "stop" and is_accelerator(self.device):
            self.watch(step, loss=loss, grad_norm=grad_norm)
            return True
        values = torch.stack((loss.float(), grad_norm.float()))
        if is_open():
            # sums over ranks carry a NaN to all of them, but nothing depends on that
            is_bad = (~values.isfinite()).to(torch.int32)
            dist.all_reduce(is_bad, dist.ReduceOp.MAX)
            values = torch.where(is_bad.bool() & values.isfinite(), math.nan, values)
        self._note(StepNumbers(step, *values.tolist()))
        return self.last.bad is None or not self.judges

    def watch(self, step: int, *, loss: Tensor, grad_norm: Tensor) -> None:
        """Notes the step's numbers without waiting for them."""
        self._steps.append(step)
        self._values.append(torch.stack((loss, grad_norm)))

    def read(self) -> StepNumbers:
        """The numbers of the last step. Raises NonFinite for the first step watched whose numbers are not finite."""
        if self._steps:
            rows = torch.stack(self._values).tolist()
            steps, self._steps, self._values = self._steps, [], []
            for step, (loss, norm) in zip(steps, rows, strict=True):
                self._note(StepNumbers(step, loss, norm))
                if self.last.bad and self.judges:
                    raise NonFinite.of(self.last)
        return self.last

    def _note(self, numbers: StepNumbers) -> None:
        self._last = numbers
        self.spikes.hear(numbers.step, numbers.loss)
