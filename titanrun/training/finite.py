"""Stops a run whose loss or gradients are no longer numbers, before the weights they spoiled are saved."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EXIT_NON_FINITE = 5


class NonFinite(Exception):
    """A loss or gradient norm that is NaN or infinite."""

    exit_code = EXIT_NON_FINITE

    def __init__(self, *, step: int, name: str, value: float) -> None:
        self.step = step
        super().__init__(f"{name} is {value} at step {step}")


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step's loss and gradient norm as Python numbers."""

    step: int
    loss: float
    grad_norm: float


class FiniteGuard:
    """Remembers each step's loss and gradient norm on the device; `read` brings them all over in one transfer."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[Tensor] = []
        self._last: StepNumbers | None = None

    def watch(self, step: int, *, loss: Tensor, grad_norm: Tensor) -> None:
        """Notes the step's numbers without waiting for them."""
        self._steps.append(step)
        self._values.append(torch.stack((loss, grad_norm)))

    def read(self) -> StepNumbers:
        """The numbers of the last step watched. Raises NonFinite for the first step whose numbers are not finite."""
        if self._steps:
            rows = torch.stack(self._values).tolist()
            steps, self._steps, self._values = self._steps, [], []
            for step, (loss, norm) in zip(steps, rows, strict=True):
                self._last = StepNumbers(step, loss, norm)
                check_finite(self._last)
        assert self._last is not None, "no step was watched"
        return self._last


def check_finite(numbers: StepNumbers) -> None:
    """Raises NonFinite where the loss or the norm is NaN or infinite."""
    for name, value in (("loss", numbers.loss), ("gradient norm", numbers.grad_norm)):
        if not math.isfinite(value):
            raise NonFinite(step=numbers.step, name=name, value=value)
