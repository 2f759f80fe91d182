"""Datasets of prompts with expected answers, for RL and for fine-tuning on the answers."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.record_source_config import RecordSourceFields
from titanrun.components.data.validators_config import CommitHash
from titanrun.config.fields import numerics, performance
from titanrun.config.types import PositiveInt, Text


class PromptDatasetConfig(DatasetConfig):
    """Prompts with expected answers.

    As a sample for pretraining, prompt and answer are one sequence with a loss on the answer.
    """

    restarts_positions: ClassVar = True


class SyntheticPromptsConfig(PromptDatasetConfig):
    """Fields of synthetic tasks."""

    count: PositiveInt = numerics(4096, unit="prompts")
    """Number of prompts, generated with a fixed seed."""
    split: Literal["train", "held_out"] = numerics("train")
    """Split of the prompts. held_out shares no prompt with train.

    The count may be smaller if there are not enough different prompts."""


class StringTaskConfig(SyntheticPromptsConfig):
    """Letters to transform: `abc>` into `cba`."""

    name: Literal["string_task"] = numerics("string_task")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    operation: Literal["reverse", "copy", "sort", "upper"] = numerics("reverse")
    """Operation on the letters of the prompt that gives the answer."""
    length: PositiveInt = numerics(3, unit="letters")
    """Letters of a prompt."""
    alphabet: Text = numerics("abcdefghij")
    """Letters to draw from."""


class ArithmeticConfig(SyntheticPromptsConfig):
    """Sums: `12+34=` into `46`, or the digits of one number, `1234:` into `10`."""

    name: Literal["arithmetic"] = numerics("arithmetic")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    operation: Literal["addition", "digit_sum"] = numerics("addition")
    """Sum to compute: of two numbers or of the digits of one number."""
    digits: Annotated[int, Interval(gt=0, le=15)] = numerics(2, unit="digits")
    """Digits of each number."""


class GuessTaskConfig(SyntheticPromptsConfig):
    """Number to guess. The prompt is always `?`, the expected answer is the number.

    For the environment guess_number.
    """

    name: Literal["guess_task"] = numerics("guess_task")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    highest: Annotated[int, Interval(gt=0, le=10**9)] = numerics(9)
    """Largest number; the smallest is 0."""


class LookupTaskConfig(SyntheticPromptsConfig):
    """Word to look up, `b>`. The expected answer is a dictionary and an entry: `a=41,b=07;07`.

    For the environment tool_lookup.
    """

    name: Literal["lookup_task"] = numerics("lookup_task")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    words: Text = numerics("abcd")
    """The words of every dictionary, one letter each."""
    digits: Annotated[int, Interval(gt=0, le=15)] = numerics(2, unit="digits")
    """Digits of the value of a word."""


class PromptRecordsConfig(PromptDatasetConfig):
    """Fields of datasets whose prompts and answers are columns of records."""

    prompt_column: Text = numerics("prompt")
    """Column of the prompt: a text, or messages, of which the first one, the user's, is taken."""
    answer_column: Text | None = numerics("answer")
    """Column of the expected answer. Null: none, where no reward and no environment reads it."""
    answer_pattern: Text | None = numerics(None, examples=[r"#### (.*)"])
    """Python regular expression that extracts the expected answer from the column.

    The answer is the first match, or its group if the pattern has one. Null: the whole column."""


class QuestionsConfig(RecordSourceFields, PromptRecordsConfig):
    """Prompts and answers from a JSONL file, one object per line, or from a dataset on the Hub."""

    name: Literal["questions"] = numerics("questions")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    max_questions: PositiveInt | None = numerics(None, unit="questions", examples=[1000])
    """Number of prompts to read, from the first on. Null: all."""


class HubQuestionsConfig(PromptRecordsConfig):
    """Prompts and answers of a dataset on the Hugging Face Hub, at one commit."""

    name: Literal["hub_questions"] = numerics("hub_questions")
    builds: ClassVar = "titanrun.rl.prompts.prompt_dataset:build_prompt_dataset"
    repo: Text = numerics(examples=["openai/gsm8k"])
    """Dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics(None, examples=["main"])
    """Subset, if the dataset has several."""
    split: Text = numerics("train", examples=["test"])
    """Split of the dataset."""
    revision: CommitHash = numerics(examples=["1588ec454efa1a09f29cd18ddd04fe05fc8653a2"])
    """Commit, which pins the data."""
    streaming: bool = performance(False)
    """Whether to fetch records while reading.

    If false, the whole split is fetched first into the Hub's own cache."""
    max_questions: PositiveInt | None = numerics(None, unit="questions", examples=[1000])
    """Number of prompts to read, from the first on. Null: all."""
