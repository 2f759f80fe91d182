"""The reward of an answer from several: their weighted mean, or what the recipe gives for answers that were cut off."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from titanrun.rl.samples import TRUNCATED, Rollout


class Reward(Protocol):
    """What answers are worth; None where there is no saying."""

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Rubric:
    """Scores conversations.

    Args:
        rewards: by the name that metrics call them, with their weights.
        truncation_reward: of conversations that were cut off, in the place of all rewards; None: as all others.
        error_reward: of conversations whose environment failed; None: they have no reward.
    """

    rewards: dict[str, tuple[Reward, float]]
    truncation_reward: float | None = None
    error_reward: float | None = None

    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Writes the reward into each conversation, and what it is made of; None where any part is missing or no number."""
        usual: list[Rollout] = []
        for rollout in rollouts:
            if rollout.status in TRUNCATED and self.truncation_reward is not None:
                rollout.reward = self.truncation_reward
            elif rollout.status == "error_environment":
                rollout.reward = self.error_reward
            else:
                usual.append(rollout)
        total = sum(weight for _, weight in self.rewards.values())
        for name, (reward, _) in self.rewards.items():
            for rollout, worth in zip(usual, reward.score(usual), strict=True):
                if worth is not None and isfinite(worth):
                    rollout.parts[name] = worth
        for rollout in usual:
            if len(rollout.parts) < len(self.rewards):
                rollout.status = "error_reward"
                continue
            rollout.reward = sum(
                weight * rollout.parts[name] for name, (_, weight) in self.rewards.items()
            ) / (total or 1.0)

    def close(self) -> None:
        """Ends what the rewards started."""
        for reward, _ in self.rewards.values():
            reward.close()
