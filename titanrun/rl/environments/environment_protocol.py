"""Protocol of RL environments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from titanrun.rl.rollout_types import Rollout


class EnvironmentStepError(Exception):
    """Failure of an environment in one conversation, which is dropped.

    The environment crashed, timed out, or responded with invalid data.
    """


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """Response to a completion: text, reward, and whether the conversation is over."""

    text: str = ""
    reward: float = 0.0
    done: bool = True


class Environment(Protocol):
    """Environment that responds to the policy.

    It keeps no state between turns outside the conversation, so that everything can be saved at any
    time.
    """

    max_turns: int

    def step(self, rollouts: Sequence[Rollout]) -> list[EnvironmentStep | EnvironmentStepError]:
        """Return the response to the last completion of each conversation."""

    def close(self) -> None:
        """Release all resources."""
