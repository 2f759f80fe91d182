"""Detection of NaN and infinite losses and gradients.

Values are checked before the update if that costs nothing, else afterwards.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.config.exit_codes import EXIT_NON_FINITE
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.process_group import is_process_group_initialized
from titanrun.training.loss_spikes import LossSpikeDetector
from titanrun.training.update_scalars import DeferredUpdate

CPU = torch.device("cpu")
# batches of token ids are small, but not nothing
MAX_UNREAD_STEPS = 32
NonFinitePolicy = Literal["stop", "skip", "rollback"]


@dataclass(frozen=True, slots=True)
class StepValues:
    """Loss and gradient norm of one step as Python numbers."""

    step: int
    loss: float
    grad_norm: float

    @property
    def nonfinite_name(self) -> str | None:
        """Name of the value that is NaN or infinite, or None if both are finite.

        If both are non-finite, it is the loss.
        """
        named = {"loss": self.loss, "gradient norm": self.grad_norm}
        return next((name for name, value in named.items() if not math.isfinite(value)), None)


class NonFiniteError(Exception):
    """Error for a loss, gradients or weights that are NaN or infinite.

    Args:
        step: step that computed the value.
        name: name of the value that is NaN or infinite.
        value: the value.
        reason: reason why the run cannot continue although its recipe requests it.
    """

    exit_code = EXIT_NON_FINITE
    # input of the step, if its values were read after it
    unread_input: Any = None

    def __init__(self, *, step: int, name: str, value: float | str, reason: str = "") -> None:
        self.step = step
        self.details: dict[str, Any] = {"name": name, "value": value}
        super().__init__(f"{name} is {value} at step {step}{reason and f', and {reason}'}")

    @classmethod
    def from_values(cls, values: StepValues) -> "NonFiniteError":
        """Return the error of a step with these values."""
        value = values.grad_norm if math.isfinite(values.loss) else values.loss
        return cls(step=values.step, name=values.nonfinite_name or "loss", value=value)

    def with_reason(self, reason: str) -> "NonFiniteError":
        """Return the same error with the reason why the run cannot continue."""
        return NonFiniteError(step=self.step, **self.details, reason=reason)


@dataclass(slots=True)
class NonFiniteGuard:
    """Check of each step's loss and gradient norm.

    On a CPU, and if the policy needs it, a step is checked before its update. On an accelerator
    that check would wait for the device. With the policy `stop`, the values therefore stay on the
    device until they are read, all in one transfer. From the first bad step on, fused optimizers
    update nothing, and the inputs of steps are kept until their values are read.

    Args:
        policy: reaction to a bad step.
        device: device of the values.
        spike_detector: observes the loss, or the gradient norm, of every step.
        is_enabled: False if the values are meaningless, because other ranks are only simulated.
        num_later_updates: updates with the gradients of a bad step, and after it, before it was
            read. Fused optimizers refused them.
    """

    policy: NonFinitePolicy = "stop"
    device: torch.device = CPU
    spike_detector: LossSpikeDetector = field(default_factory=LossSpikeDetector)
    is_enabled: bool = True
    num_later_updates: int = 0
    _steps: list[int] = field(default_factory=list)
    _values: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _last_values: StepValues | None = None
    _inputs: list[Any] = field(default_factory=list)
    _found_inf: Tensor | None = None

    @property
    def defers_checks(self) -> bool:
        """Whether values stay on the device until they are read."""
        return self.policy == "stop" and is_accelerator(self.device)

    @property
    def must_read(self) -> bool:
        """Whether so many steps are unread that their inputs take too much memory."""
        return len(self._steps) >= MAX_UNREAD_STEPS

    @property
    def last_values(self) -> StepValues:
        """Newest values that were read."""
        assert self._last_values is not None, "no step was watched"
        return self._last_values

    def should_update(
        self, step: int, *, loss: Tensor, grad_norm: Tensor, step_input: Any = None
    ) -> bool | DeferredUpdate:
        """Return whether to apply the update, equal on all ranks.

        Args:
            step: the step.
            loss: its loss.
            grad_norm: its gradient norm.
            step_input: kept until the values are read, if the check is deferred.
        """
        if self.defers_checks:
            self.record_step(step, loss=loss, grad_norm=grad_norm)
            self._inputs.append(step_input)
            return DeferredUpdate(self._latch(loss, grad_norm)) if self.is_enabled else True
        values = torch.stack((loss.float(), grad_norm.float()))
        if is_process_group_initialized():
            # sums over ranks carry a NaN to all of them, but nothing depends on that
            is_bad = (~values.isfinite()).to(torch.int32)
            dist.all_reduce(is_bad, dist.ReduceOp.MAX)
            values = torch.where(is_bad.bool() & values.isfinite(), math.nan, values)
        self._set_last_values(StepValues(step, *values.tolist()))
        return self.last_values.nonfinite_name is None or not self.is_enabled

    def record_step(self, step: int, *, loss: Tensor, grad_norm: Tensor) -> None:
        """Record the values of the step without waiting for them."""
        self._steps.append(step)
        self._values.append((loss, grad_norm))

    def read(self) -> StepValues:
        """Return the values of the last step.

        Raises:
            NonFiniteError: a deferred step has NaN or infinite values. The first one is reported.
        """
        if self._steps:
            # one kernel and one transfer for all steps
            values = torch.stack([value.float() for pair in self._values for value in pair])
            steps, self._steps, self._values = self._steps, [], []
            inputs, self._inputs, self._found_inf = self._inputs, [], None
            pairs = values.view(-1, 2).tolist()
            for index, (step, (loss, norm)) in enumerate(zip(steps, pairs, strict=True)):
                self._set_last_values(StepValues(step, loss, norm))
                if self.last_values.nonfinite_name and self.is_enabled:
                    error = NonFiniteError.from_values(self.last_values)
                    self.num_later_updates = len(steps) - index
                    if index < len(inputs):
                        error.unread_input = inputs[index]
                    raise error
        return self.last_values

    def _latch(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Return 1 on the device if this step or an unread one before it is not finite, else 0."""
        is_bad = (~(loss + grad_norm).isfinite()).float()
        if self._found_inf is not None:
            is_bad = torch.maximum(is_bad, self._found_inf)
        self._found_inf = is_bad
        return is_bad

    def _set_last_values(self, numbers: StepValues) -> None:
        self._last_values = numbers
        detector = self.spike_detector
        detector.observe(
            numbers.step, numbers.loss if detector.quantity == "loss" else numbers.grad_norm
        )
