"""Hook that reports which sequences, modules and parameters made a step non-finite."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from titanrun.training.engine_outputs import StepOutput
from titanrun.training.nonfinite_report import NonFiniteReport, collect_nonfinite_report
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class NonFiniteReportHook(TrainHook):
    """Collection of a report for each rejected step. `write` must not raise."""

    write: Callable[[NonFiniteReport, StepInput], None]

    def on_update_rejected(
        self, loop: "TrainLoop", inp: StepInput, output: StepOutput, grad_norm: Tensor
    ) -> None:
        """Recompute the outputs of the step and report non-finite values. Collective."""
        report = collect_nonfinite_report(loop.engine, inp.batches, loop.guard.last_values)
        updates = 0 if loop.engine.uses_update_scalars else loop.guard.num_later_updates
        self.write(replace(report, num_later_updates=updates), inp)
