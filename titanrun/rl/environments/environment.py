"""What the rest of titanrun asks of an environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from titanrun.rl.samples import Rollout


class EnvironmentFailed(Exception):
    """What an environment did to one conversation, which is dropped: it died, took too long, or answered rubbish."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What follows an answer of the policy: the environment's words and reward, and whether it is over."""

    text: str = ""
    reward: float = 0.0
    done: bool = True


class Environment(Protocol):
    """Answers the policy. It keeps nothing between turns that is not in the conversation: all of it can be saved at any time."""

    max_turns: int

    def reply(self, rollouts: Sequence[Rollout]) -> list[Answered | EnvironmentFailed]:
        """What follows the last answer of each conversation."""

    def close(self) -> None:
        """Ends what it started."""
