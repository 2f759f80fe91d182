"""The reward slot and its choices."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import (
    Argument,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Text,
    VariableName,
)

Command = Annotated[tuple[Argument, ...], Len(1)]


class RewardConfig(ComponentConfig):
    """Reward of a completion, a number."""

    slot: ClassVar = "reward"
    is_slot: ClassVar = True
    builds_what: ClassVar = "an object with score(rollouts) and close()"
    built_attributes: ClassVar = ("score", "close")
    uses_device: ClassVar[bool] = False
    """Whether the reward computes on the device of the policy, which it gets as a keyword."""
    reads_answer: ClassVar[bool] = False
    """Whether the reward compares a completion with the expected answer."""
    weight: NonNegativeFloat = numerics(1.0)
    """Weight of this reward. The weights of a recipe are scaled to sum to 1."""


class ExactMatchConfig(RewardConfig):
    """1 if the completion equals the expected answer, ignoring surrounding spaces, else 0."""

    name: Literal["exact_match"] = numerics("exact_match")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:ExactMatchReward"
    reads_answer: ClassVar = True


class CharAccuracyConfig(RewardConfig):
    """Fraction of the expected answer's characters at the right position."""

    name: Literal["char_accuracy"] = numerics("char_accuracy")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:CharAccuracyReward"
    reads_answer: ClassVar = True


class CharShareConfig(RewardConfig):
    """Fraction of the completion's characters that are in a given set."""

    name: Literal["char_share"] = numerics("char_share")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:CharShareReward"
    characters: Text = numerics("a")
    """The set of characters."""


class SimilarityConfig(RewardConfig):
    """Similarity to the expected answer: 2 * matches / length of both (difflib's ratio)."""

    name: Literal["similarity"] = numerics("similarity")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:SimilarityReward"
    reads_answer: ClassVar = True


class RegexConfig(RewardConfig):
    """1 if the whole completion matches a pattern, else 0."""

    name: Literal["regex"] = numerics("regex")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:RegexReward"
    pattern: Text = numerics(r"\S+", examples=[r"<answer>.*</answer>"])
    """Python regular expression for the whole completion. A dot matches line breaks too."""


class NumericCloseConfig(RewardConfig):
    """1 if the last number of the completion is the expected one, else 0."""

    name: Literal["numeric_close"] = numerics("numeric_close")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:NumericCloseReward"
    reads_answer: ClassVar = True
    tolerance: NonNegativeFloat = numerics(1e-6)
    """Largest difference that counts as equal."""


class LengthPenaltyConfig(RewardConfig):
    """0 for completions of up to `free` tokens, then -1 for each `span` tokens more."""

    name: Literal["length_penalty"] = numerics("length_penalty")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:LengthPenaltyReward"
    free: NonNegativeInt = numerics(0, unit="tokens")
    """Tokens without a penalty."""
    span: PositiveInt = numerics(100, unit="tokens")
    """Tokens per penalty of 1."""


class EnvironmentRewardConfig(RewardConfig):
    """Sum of the environment's rewards over all turns."""

    name: Literal["environment"] = numerics("environment")
    builds: ClassVar = "titanrun.rl.rewards.text_rewards:EnvironmentReward"


class ModelRewardConfig(RewardConfig):
    """Score of a reward model, trained by titanrun with the loss reward.

    It reads the prompt as the user's message and completions as replies, in the chat template of
    its own run.
    """

    name: Literal["model"] = numerics("model")
    builds: ClassVar = "titanrun.worker.model_reward:ModelReward"
    uses_device: ClassVar = True
    path: Text = numerics(examples=["runs/rm"])
    """Run directory or checkpoint of the reward model, whose latest checkpoint is used."""
    batch_size: PositiveInt = performance(16, resume=True)
    """Conversations that are scored at a time."""


class CommandConfig(RewardConfig):
    """External program in any language, with one JSON object per line on stdin and stdout.

    It writes `reward` for each object that it reads.
    """

    name: Literal["command"] = numerics("command")
    builds: ClassVar = "titanrun.rl.rewards.command_reward:CommandReward"
    command: Command = numerics(examples=[["python", "reward.py"]], runs="command")
    """Program and arguments. They run only with the user's consent: `--trust`.

    The program reads a line `{"id", "prompt", "expected", "answer", "answers"}` for each
    conversation, and writes a line `{"reward": 0.5}`. In Python, around a function `score`:
    `for line in sys.stdin: print(json.dumps({"reward": score(**json.loads(line))}), flush=True)`.
    """
    secret_variables: tuple[VariableName, ...] = bookkeeping((), examples=[["OPENAI_API_KEY"]])
    """Environment variables with secrets that the program gets. It gets no others that look like
    one."""
    timeout_seconds: PositiveFloat = bookkeeping(30.0, unit="seconds")
    """Longest duration of a response. Then the program is restarted, the completion dropped."""
    max_restarts: NonNegativeInt = bookkeeping(3)
    """Restarts of a crashed or hanging program before the run stops."""
    processes: PositiveInt = performance(1, unit="processes")
    """Copies of the program, which score completions at the same time.

    Each process of a fleet has as many of its own."""
