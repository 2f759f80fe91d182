"""Combined reward of a conversation: weighted mean, or fixed rewards for special cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from titanrun.rl.rollout_types import TRUNCATED_STATUSES, Rollout


class Reward(Protocol):
    """Reward of conversations."""

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the reward of each conversation, None if it cannot be determined."""

    def close(self) -> None:
        """Release all resources."""


@dataclass(slots=True)
class RewardFunction:
    """Weighted mean of rewards.

    Args:
        rewards: rewards with their weights, by metric name.
        truncation_reward: replaces all rewards of truncated conversations. None: no special case.
        error_reward: reward of conversations whose environment failed. None: they have no reward.
    """

    rewards: dict[str, tuple[Reward, float]]
    truncation_reward: float | None = None
    error_reward: float | None = None

    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Set the reward of each conversation, and its parts.

        The reward is None if any part is missing or not finite.
        """
        usual: list[Rollout] = []
        for rollout in rollouts:
            if rollout.status in TRUNCATED_STATUSES and self.truncation_reward is not None:
                rollout.reward = self.truncation_reward
            elif rollout.status == "error_environment":
                rollout.reward = self.error_reward
            else:
                usual.append(rollout)
        total = sum(weight for _, weight in self.rewards.values())
        for name, (reward, _) in self.rewards.items():
            for rollout, value in zip(usual, reward.score(usual), strict=True):
                if value is not None and isfinite(value):
                    rollout.parts[name] = value
        for rollout in usual:
            if len(rollout.parts) < len(self.rewards):
                rollout.status = "error_reward"
                continue
            rollout.reward = sum(
                weight * rollout.parts[name] for name, (_, weight) in self.rewards.items()
            ) / (total or 1.0)

    def close(self) -> None:
        """Release the resources of all rewards."""
        for reward, _ in self.rewards.values():
            reward.close()
