"""The reward slot and its choices: what an answer is worth."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Len

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping, numerics
from titanrun.config.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Text

Command = Annotated[tuple[Text, ...], Len(1)]


class RewardConfig(ComponentConfig):
    """What an answer is worth, as a number."""

    slot: ClassVar = "reward"
    is_slot: ClassVar = True
    weight: NonNegativeFloat = numerics(1.0)
    """Share of this reward; those of a recipe are scaled to add up to 1."""


class ExactMatchConfig(RewardConfig):
    """1 where the answer is the expected one, spaces around it aside; else 0."""

    name: Literal["exact_match"] = numerics("exact_match")
    builds: ClassVar = "titanrun.rl.rewards.text:ExactMatch"


class CharAccuracyConfig(RewardConfig):
    """Share of the expected answer's characters that stand in their place."""

    name: Literal["char_accuracy"] = numerics("char_accuracy")
    builds: ClassVar = "titanrun.rl.rewards.text:CharAccuracy"


class CharShareConfig(RewardConfig):
    """Share of the answer's characters that are one of those wanted."""

    name: Literal["char_share"] = numerics("char_share")
    builds: ClassVar = "titanrun.rl.rewards.text:CharShare"
    characters: Text = numerics("a")
    """The characters that are wanted."""


class SimilarityConfig(RewardConfig):
    """How much of the answer and the expected one is the same in order: 2 * matches / length of both (difflib's ratio)."""

    name: Literal["similarity"] = numerics("similarity")
    builds: ClassVar = "titanrun.rl.rewards.text:Similarity"


class RegexConfig(RewardConfig):
    """1 where the whole answer has a form, whatever it says; else 0."""

    name: Literal["regex"] = numerics("regex")
    builds: ClassVar = "titanrun.rl.rewards.text:Form"
    pattern: Text = numerics(r"\S+", examples=[r"<answer>.*</answer>"])
    """Regular expression of Python that the whole answer matches; a dot matches line ends too."""


class NumericCloseConfig(RewardConfig):
    """1 where the last number of the answer is the expected one; else 0."""

    name: Literal["numeric_close"] = numerics("numeric_close")
    builds: ClassVar = "titanrun.rl.rewards.text:NumericClose"
    tolerance: NonNegativeFloat = numerics(1e-6)
    """Largest difference that counts as equal."""


class LengthPenaltyConfig(RewardConfig):
    """0 for answers of up to `free` tokens, then -1 for each `span` tokens more."""

    name: Literal["length_penalty"] = numerics("length_penalty")
    builds: ClassVar = "titanrun.rl.rewards.text:LengthPenalty"
    free: NonNegativeInt = numerics(0, unit="tokens")
    """Tokens that cost nothing."""
    span: PositiveInt = numerics(100, unit="tokens")
    """Tokens that cost 1."""


class EnvironmentRewardConfig(RewardConfig):
    """What the environment itself gave, added up over the turns."""

    name: Literal["environment"] = numerics("environment")
    builds: ClassVar = "titanrun.rl.rewards.text:OfEnvironment"


class CommandConfig(RewardConfig):
    """A program of yours, in any language: it reads one JSON object a line on stdin and writes one with `reward` a line on stdout."""

    name: Literal["command"] = numerics("command")
    builds: ClassVar = "titanrun.rl.rewards.command:CommandReward"
    command: Command = numerics(examples=[["python", "reward.py"]])
    """The program and its arguments."""
    timeout_seconds: PositiveFloat = bookkeeping(30.0, unit="seconds")
    """How long one answer may take; a program that takes longer is started again, and the answer is dropped."""
    max_restarts: NonNegativeInt = bookkeeping(3)
    """How often a program that died or hung is started again before the run stops."""
