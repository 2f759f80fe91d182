"""Datasets of prompts with their expected answers: for RL, and for fine-tuning on the answers."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.components.data.config import DatasetConfig
from titanrun.config.fields import numerics
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
    operation: Literal["reverse", "copy", "sort"] = numerics("reverse")
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


class QuestionsConfig(TaskConfig):
    """Prompts and answers from a jsonl file, one object a line."""

    name: Literal["questions"] = numerics("questions")
    builds: ClassVar = "titanrun.rl.tasks.rows:open_task"
    path: Text = numerics(examples=["data/questions.jsonl"])
    """The file, a folder of such files, or a glob."""
    prompt_column: Text = numerics("prompt")
    """Key of the prompt."""
    answer_column: Text = numerics("answer")
    """Key of the expected answer."""
