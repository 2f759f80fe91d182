"""Forward and backward passes with the predictions of a teacher.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from titanrun.components.data.token_batch import Batch, TokenBatch
from titanrun.components.losses.distillation import TEACHER_LOGITS
from titanrun.distributed.token_accuracy import TokenAccuracy
from titanrun.training.engine import Engine
from titanrun.training.runners.forward_backward import ForwardBackward, Loss, OutputFn


@dataclass(frozen=True, slots=True)
class DistillationForwardBackward:
    """Passes of a student whose loss also reads the logits of a teacher.

    The teacher's logits are computed pass by pass: those of a whole step would not fit into memory.

    Args:
        student: passes of the student.
        teacher: engine of the teacher, in evaluation mode and in the student's layout.
    """

    accepts_microbatches: ClassVar[bool] = False
    student: ForwardBackward
    teacher: Engine

    def forward_backward(
        self, batch: Batch, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the loss sum, divided by `divisor`, and return the undivided sum.

        A loss passed as an argument gets no teacher.
        """
        read = batch if loss is not None else self._add_teacher_logits(batch)
        return self.student.forward_backward(read, divisor, loss=loss)

    def compute_loss_sum(
        self, batch: Batch, *, loss: Loss | None = None, accuracy: TokenAccuracy | None = None
    ) -> Tensor:
        """Compute the loss sum without gradients."""
        read = batch if loss is not None else self._add_teacher_logits(batch)
        return self.student.compute_loss_sum(read, loss=loss, accuracy=accuracy)

    def compute_outputs(self, batch: Batch, output_fn: OutputFn) -> dict[str, Tensor]:
        """Apply `output_fn` to the student's output [B, T, V], without gradients."""
        return self.student.compute_outputs(batch, output_fn)

    def _add_teacher_logits(self, batch: Batch) -> TokenBatch:
        """Return the batch with the teacher's logits, sharded as the student's."""
        assert isinstance(batch, TokenBatch), "a rule checks the modality"
        found = self.teacher.runner.compute_outputs(
            batch, lambda logits_BTV, _: {TEACHER_LOGITS: logits_BTV}
        )
        return replace(batch, extra={**batch.extra, **found})
