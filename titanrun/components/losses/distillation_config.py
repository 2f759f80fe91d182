"""Loss of distillation, which teaches a model the predictions of another one."""

from pathlib import Path
from typing import ClassVar, Literal

from titanrun.components.losses.config import LossConfig
from titanrun.config.base import Config
from titanrun.config.fields import component, numerics
from titanrun.config.types import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Text


class TeacherLogprobsConfig(Config):
    """Predictions of a teacher in files."""

    path: Text = numerics(examples=["data/taught"])
    """Folder into which titanrun data teach writes the predictions, and from which runs read
    them."""
    top_k: PositiveInt = numerics(64, examples=[32])
    """Most likely tokens of each prediction; all others count as one token. A run may read fewer
    than were written."""

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.path)


class DistillationConfig(LossConfig):
    """Divergence between the predictions of the model and of a frozen teacher.

    It is the mean over the tokens that count in the loss, which the dataset decides.
    """

    name: Literal["distillation"] = numerics("distillation")
    builds: ClassVar = "titanrun.components.losses.distillation:DistillationLoss"
    supports_loss_parallel: ClassVar = True
    supports_token_weights: ClassVar = True
    needs_teacher: ClassVar = True
    teacher: Text | None = numerics(None, examples=["runs/teacher"])
    """Run directory, checkpoint or Hugging Face folder of the teacher, with the model's vocabulary
    and tokenizer. Of a run it is the latest checkpoint. With teacher_logprobs only titanrun data
    teach reads it."""
    teacher_logprobs: TeacherLogprobsConfig | None = component(None)
    """Predictions of the teacher in files, instead of a teacher in memory."""
    beta: Fraction = numerics(1.0, examples=[0.5])
    """Kind of divergence. 0: forward KL, from the teacher to the model. 1: reverse KL. Between
    them: generalized Jensen-Shannon divergence, with a mixture that has this share of the teacher
    (https://arxiv.org/abs/2306.13649)."""
    temperature: PositiveFloat = numerics(1.0, examples=[2.0])
    """Divisor of the logits of both models. The divergence is not multiplied by its square."""
    hard_weight: NonNegativeFloat = numerics(0.0, examples=[0.5])
    """Weight of the cross entropy of the data's own tokens, at temperature 1, added to the
    divergence."""

    @property
    def teacher_path(self) -> str | None:
        """Teacher that the run reads, None if its predictions are in files."""
        return self.teacher if self.teacher_logprobs is None else None

    @property
    def taught_logprobs(self) -> TeacherLogprobsConfig | None:
        """Files of the teacher's predictions."""
        return self.teacher_logprobs
