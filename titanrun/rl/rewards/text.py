"""What an answer is worth by its text."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.rl.rewards.config import (
    CharAccuracyConfig,
    CharShareConfig,
    EnvironmentRewardConfig,
    ExactMatchConfig,
    LengthPenaltyConfig,
    NumericCloseConfig,
    RegexConfig,
    RewardConfig,
    SimilarityConfig,
)
from titanrun.rl.samples import Rollout

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class TextReward:
    """A reward of each conversation by itself."""

    def __init__(self, config: RewardConfig, *, log: Path) -> None:
        self.config = config

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """The reward of each conversation; None where there is none."""
        return [self.worth(rollout) for rollout in rollouts]

    def worth(self, rollout: Rollout) -> float:
        """The reward of a conversation."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing was started."""


class ExactMatch(TextReward):
    """1 for the expected answer."""

    config: ExactMatchConfig

    def worth(self, rollout: Rollout) -> float:
        return float(rollout.answer.strip() == rollout.question.answer.strip())


class CharAccuracy(TextReward):
    """Share of the characters that stand in their place; what is too long counts against it."""

    config: CharAccuracyConfig

    def worth(self, rollout: Rollout) -> float:
        said, wanted = rollout.answer.strip(), rollout.question.answer.strip()
        right = sum(one == other for one, other in zip(said, wanted, strict=False))
        return right / max(len(said), len(wanted), 1)


class CharShare(TextReward):
    """Share of characters that are wanted; 0 for nothing said."""

    config: CharShareConfig

    def worth(self, rollout: Rollout) -> float:
        said = rollout.answer
        return sum(character in self.config.characters for character in said) / max(len(said), 1)


class Similarity(TextReward):
    """difflib's ratio."""

    config: SimilarityConfig

    def worth(self, rollout: Rollout) -> float:
        return SequenceMatcher(
            None, rollout.answer.strip(), rollout.question.answer.strip(), autojunk=False
        ).ratio()


class Form(TextReward):
    """1 for an answer of the form."""

    config: RegexConfig

    def __init__(self, config: RegexConfig, *, log: Path) -> None:
        super().__init__(config, log=log)
        try:
            self.pattern = re.compile(config.pattern, re.DOTALL)
        except re.error as error:
            raise fail(
                "conflict", f"the pattern is no regular expression: {error}", path=("rl", "rewards")
            ) from None

    def worth(self, rollout: Rollout) -> float:
        return float(self.pattern.fullmatch(rollout.answer) is not None)


class NumericClose(TextReward):
    """1 where the last number said is near enough to the expected one."""

    config: NumericCloseConfig

    def worth(self, rollout: Rollout) -> float:
        said, wanted = NUMBER.findall(rollout.answer), NUMBER.findall(rollout.question.answer)
        return float(
            bool(said and wanted)
            and abs(float(said[-1]) - float(wanted[-1])) <= self.config.tolerance
        )


class LengthPenalty(TextReward):
    """What tokens cost."""

    config: LengthPenaltyConfig

    def worth(self, rollout: Rollout) -> float:
        return -max(0, rollout.answer_tokens - self.config.free) / self.config.span


class OfEnvironment(TextReward):
    """What the environment gave."""

    config: EnvironmentRewardConfig

    def worth(self, rollout: Rollout) -> float:
        return rollout.gained
