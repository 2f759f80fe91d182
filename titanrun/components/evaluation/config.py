"""The evaluation section, and the slot of its tasks."""

from typing import ClassVar, Literal

from titanrun.components.data.config import DatasetConfig
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, performance
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt, Text


class TaskConfig(ComponentConfig):
    """Something to measure a trained model by."""

    slot: ClassVar = "task"
    is_slot: ClassVar = True
    name: str = bookkeeping()
    limit: PositiveInt | None = bookkeeping(None, examples=[100])
    """How many rows, conversations or questions are looked at, the first ones; null: all."""


class LossTaskConfig(TaskConfig):
    """Loss and perplexity on a dataset, every token that counts weighing the same."""

    name: Literal["loss"] = bookkeeping("loss")
    builds: ClassVar = "titanrun.components.evaluation.loss:measure_loss"
    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """The data; `auto` is validation.dataset."""
    seq_len: OrAuto[PositiveInt] = bookkeeping("auto", unit="tokens", examples=[2048])
    """Length of a row; `auto` is validation.seq_len."""


class ExactMatchTaskConfig(TaskConfig):
    """How many replies of conversations the model gives word by word, asked what was said before them; it takes the likeliest tokens."""

    name: Literal["exact_match"] = bookkeeping("exact_match")
    builds: ClassVar = "titanrun.components.evaluation.exact_match:measure_exact_match"
    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """The conversations; `auto` is validation.dataset."""
    max_new_tokens: PositiveInt = bookkeeping(128, unit="tokens")
    """Tokens of an answer, at most."""


class MultipleChoiceTaskConfig(TaskConfig):
    """Questions with several answers, of which the model takes the one that it finds likeliest."""

    name: Literal["multiple_choice"] = bookkeeping("multiple_choice")
    builds: ClassVar = "titanrun.components.evaluation.multiple_choice:measure_choices"
    path: Text = bookkeeping(examples=["data/questions.jsonl"])
    """A jsonl file with one {"question": ..., "choices": [...], "answer": 0} a line; answer counts from 0."""


class LmEvalTaskConfig(TaskConfig):
    """A task of the LM Evaluation Harness, measured by its code and data through this model. Needs the extra `lm-eval`."""

    name: Literal["lm_eval"] = bookkeeping("lm_eval")
    builds: ClassVar = "titanrun.components.evaluation.harness:measure_harness"
    extra: ClassVar = "lm-eval"
    package: ClassVar = "lm_eval"
    task: Text = bookkeeping(examples=["hellaswag"])
    """Its name there, or that of a group of tasks."""
    folder: Text | None = bookkeeping(None, examples=["data/tasks"])
    """A folder with further task files (.yaml) of the harness; null: its own alone."""
    num_fewshot: NonNegativeInt | None = bookkeeping(None, examples=[5])
    """Examples before each question; null: as many as the task says."""


class EvaluationConfig(Config):
    """What `titanrun eval` and a run of kind eval measure."""

    tasks: tuple[TaskConfig, ...] = component(())
    """The tasks; none: loss on validation.dataset, and where that is conversations exact_match too."""
    batch_size: PositiveInt = performance(16, unit="rows")
    """Rows of a forward pass."""
