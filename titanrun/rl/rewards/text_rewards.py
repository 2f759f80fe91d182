"""Rewards computed from the text of a completion."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from titanrun.config.problems import problem_error
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
from titanrun.rl.rollout_types import Rollout

NUMBER_PATTERN = re.compile(r"-?\d+(?:\.\d+)?")


class TextReward:
    """Base class of rewards that score each conversation independently."""

    def __init__(self, config: RewardConfig, *, log: Path) -> None:
        self.config = config

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the reward of each conversation."""
        return [self.compute_reward(rollout) for rollout in rollouts]

    def compute_reward(self, rollout: Rollout) -> float:
        """Compute the reward of a conversation."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: no resources are held."""


class ExactMatchReward(TextReward):
    """1 for the expected answer."""

    config: ExactMatchConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Compare the stripped texts."""
        return float(rollout.last_completion_text.strip() == rollout.question.answer.strip())


class CharAccuracyReward(TextReward):
    """Fraction of characters at the right position. Excess length lowers it."""

    config: CharAccuracyConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Divide the number of right characters by the length of the longer text."""
        said, wanted = rollout.last_completion_text.strip(), rollout.question.answer.strip()
        right = sum(one == other for one, other in zip(said, wanted, strict=False))
        return right / max(len(said), len(wanted), 1)


class CharShareReward(TextReward):
    """Fraction of characters in the set, 0 for an empty completion."""

    config: CharShareConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Divide the number of characters in the set by the length."""
        said = rollout.last_completion_text
        return sum(character in self.config.characters for character in said) / max(len(said), 1)


class SimilarityReward(TextReward):
    """difflib's ratio."""

    config: SimilarityConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Compute difflib's ratio of the stripped texts."""
        return SequenceMatcher(
            None,
            rollout.last_completion_text.strip(),
            rollout.question.answer.strip(),
            autojunk=False,
        ).ratio()


class RegexReward(TextReward):
    """1 for a completion that matches the pattern."""

    config: RegexConfig

    def __init__(self, config: RegexConfig, *, log: Path) -> None:
        super().__init__(config, log=log)
        try:
            self.pattern = re.compile(config.pattern, re.DOTALL)
        except re.error as error:
            raise problem_error(
                "conflict", f"invalid regular expression: {error}", path=("rl", "rewards")
            ) from None

    def compute_reward(self, rollout: Rollout) -> float:
        """Match the whole completion."""
        return float(self.pattern.fullmatch(rollout.last_completion_text) is not None)


class NumericCloseReward(TextReward):
    """1 if the last number is close enough to the expected one."""

    config: NumericCloseConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Compare the last numbers of both texts."""
        said, wanted = (
            NUMBER_PATTERN.findall(rollout.last_completion_text),
            NUMBER_PATTERN.findall(rollout.question.answer),
        )
        return float(
            bool(said and wanted)
            and abs(float(said[-1]) - float(wanted[-1])) <= self.config.tolerance
        )


class LengthPenaltyReward(TextReward):
    """Penalty for the length of a completion."""

    config: LengthPenaltyConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Compute the penalty from the number of tokens."""
        return -max(0, rollout.num_completion_tokens - self.config.free) / self.config.span


class EnvironmentReward(TextReward):
    """Sum of the environment's rewards."""

    config: EnvironmentRewardConfig

    def compute_reward(self, rollout: Rollout) -> float:
        """Return the sum over all turns."""
        return rollout.gained
