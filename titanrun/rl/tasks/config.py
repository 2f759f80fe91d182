"""Datasets of prompts with their expected answers: for RL, and for fine-tuning on the answers."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.components.data.config import Commit, DatasetConfig
from titanrun.config.fields import numerics, performance
from titanrun.config.types import PositiveInt, Text


class TaskConfig(DatasetConfig):
    """Prompts, each with its expected answer. A row for pretraining is a prompt and its answer, of which the answer counts."""

    restarts_positions: ClassVar = True


class SyntheticConfig(TaskConfig):
    """What the tasks that titanrun makes up share."""

    count: PositiveInt = numerics(4096, unit="prompts")
    """How many prompts there are, drawn with a seed of their own."""
    split: Literal["train", "held_out"] = numerics("train")
    """Which of them; held_out shares no prompt with train, where there are enough."""


class StringTaskConfig(SyntheticConfig):
    """Letters to be turned into other letters: `abc>` into `cba`."""

    name: Literal["string_task"] = numerics("string_task")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    operation: Literal["reverse", "copy", "sort", "upper"] = numerics("reverse")
    """What the answer is of the letters in the prompt."""
    length: PositiveInt = numerics(3, unit="letters")
    """Letters of a prompt."""
    alphabet: Text = numerics("abcdefghij")
    """The letters they are drawn from."""


class ArithmeticConfig(SyntheticConfig):
    """Sums: `12+34=` into `46`, or the digits of one number, `1234:` into `10`."""

    name: Literal["arithmetic"] = numerics("arithmetic")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    operation: Literal["addition", "digit_sum"] = numerics("addition")
    """What is added up."""
    digits: Annotated[int, Interval(gt=0, le=15)] = numerics(2, unit="digits")
    """Digits of each number."""


class GuessTaskConfig(SyntheticConfig):
    """A number to guess: always the prompt `?`, the expected answer is the number. For the environment guess_number."""

    name: Literal["guess_task"] = numerics("guess_task")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    highest: Annotated[int, Interval(gt=0, le=10**9)] = numerics(9)
    """Numbers go from 0 to this one."""


class LookupTaskConfig(SyntheticConfig):
    """A word to look up, `b>`. The expected answer is a dictionary and its entry, `a=41,b=07;07`. For the environment tool_lookup."""

    name: Literal["lookup_task"] = numerics("lookup_task")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    words: Text = numerics("abcd")
    """The words of every dictionary, one letter each."""
    digits: Annotated[int, Interval(gt=0, le=15)] = numerics(2, unit="digits")
    """Digits of what stands behind a word."""


class RecordsConfig(TaskConfig):
    """What tasks share whose prompts and answers are columns of records."""

    prompt_column: Text = numerics("prompt")
    """Column of the prompt."""
    answer_column: Text = numerics("answer")
    """Column of the expected answer."""
    answer_pattern: Text | None = numerics(None, examples=[r"#### (.*)"])
    """Regular expression of Python whose first match in that column is the expected answer, or its group where it has one; null: all of the
    column."""


class QuestionsConfig(RecordsConfig):
    """Prompts and answers from a jsonl file, one object a line."""

    name: Literal["questions"] = numerics("questions")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    path: Text = numerics(examples=["data/questions.jsonl"])
    """The file, a folder of such files, or a glob."""


class HubQuestionsConfig(RecordsConfig):
    """Prompts and answers of a dataset on the Hugging Face Hub, at one commit."""

    name: Literal["hub_questions"] = numerics("hub_questions")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    repo: Text = numerics(examples=["openai/gsm8k"])
    """The dataset on the Hub: OWNER/NAME."""
    subset: Text | None = numerics(None, examples=["main"])
    """Which of its subsets, where it has several."""
    split: Text = numerics("train", examples=["test"])
    """Which of its splits."""
    revision: Commit = numerics(examples=["1588ec454efa1a09f29cd18ddd04fe05fc8653a2"])
    """The commit, so that the data stay the same."""
    streaming: bool = performance(False)
    """Whether records are fetched as they are read; false: the whole split is fetched first, into the Hub's own cache."""
    max_questions: PositiveInt | None = numerics(None, unit="questions", examples=[1000])
    """How many are read, the first ones; null: all."""
