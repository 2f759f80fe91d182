"""The evaluation section and the slot of its tasks."""

from typing import ClassVar, Literal

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, performance
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt, Text


class TaskConfig(ComponentConfig):
    """Evaluation task for a trained model."""

    slot: ClassVar = "task"
    is_slot: ClassVar = True
    name: str = bookkeeping()
    limit: PositiveInt | None = bookkeeping(None, examples=[100])
    """Maximum number of sequences, conversations or questions, the first ones. If null, all."""


class LossTaskConfig(TaskConfig):
    """Loss and perplexity on a dataset, with equal weights of all tokens in the loss."""

    name: Literal["loss"] = bookkeeping("loss")
    builds: ClassVar = "titanrun.components.evaluation.loss_task:evaluate_loss_task"
    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """Dataset. `auto` is validation.dataset. If null, the documents that validation.holdout holds
    out."""
    seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[2048])
    """Sequence length. `auto` is validation.seq_len."""


class ExactMatchTaskConfig(TaskConfig):
    """Share of conversation replies that the model generates verbatim, decoding greedily.

    The prompt is the conversation before the reply.
    """

    name: Literal["exact_match"] = bookkeeping("exact_match")
    builds: ClassVar = "titanrun.components.evaluation.exact_match:evaluate_exact_match"
    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """Conversations. `auto` is validation.dataset. If null, those that validation.holdout holds
    out."""
    max_new_tokens: PositiveInt = bookkeeping(128, unit="tokens")
    """Maximum number of tokens of an answer; fewer if the context of the model ends before."""


class MultipleChoiceTaskConfig(RecordSourceFields, TaskConfig):
    """Questions with several answers, of which the model chooses the most likely one.

    They are in a jsonl file, one {"question": ..., "choices": [...], "answer": 0} per line, or in
    columns of these names on the Hub. answer counts from 0.
    """

    name: Literal["multiple_choice"] = bookkeeping("multiple_choice")
    builds: ClassVar = "titanrun.components.evaluation.multiple_choice:evaluate_multiple_choice"


class LmEvalTaskConfig(TaskConfig):
    """A task of the LM Evaluation Harness. Needs the extra `lm-eval`.

    It is measured by the harness's code and data, with this model.
    """

    name: Literal["lm_eval"] = bookkeeping("lm_eval")
    builds: ClassVar = "titanrun.components.evaluation.lm_eval_task:evaluate_lm_eval_task"
    extra: ClassVar = "lm-eval"
    package: ClassVar = "lm_eval"
    task: Text = bookkeeping(examples=["hellaswag"])
    """Name of the task in the harness, or of a group of tasks."""
    folder: Text | None = bookkeeping(None, examples=["data/tasks"], runs="folder")
    """Folder with further task files (.yaml) of the harness. If null, only the harness's own."""
    num_fewshot: NonNegativeInt | None = bookkeeping(None, examples=[5])
    """Examples before each question. If null, the default of the task."""


class EvaluationConfig(Config):
    """Tasks of `titanrun eval` and of runs of kind eval."""

    tasks: tuple[TaskConfig, ...] = component(())
    """Tasks. If empty, loss on validation.dataset or the documents of validation.holdout, and for
    conversations also exact_match."""
    batch_size: PositiveInt = performance(16, unit="sequences")
    """Sequences per forward pass."""
