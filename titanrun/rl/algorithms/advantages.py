"""What the rewards of a group count for each of its answers."""

from collections.abc import Callable, Sequence
from math import sqrt

STD_FLOOR = 1e-6
Advantages = Callable[[Sequence[float]], list[float]]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def group_mean(rewards: Sequence[float]) -> list[float]:
    """r - mean(r)."""
    middle = mean(rewards)
    return [reward - middle for reward in rewards]


def group_std(rewards: Sequence[float]) -> list[float]:
    """(r - mean(r)) / (std(r) + 1e-6), with the deviation of the group itself (divided by its size)."""
    centred = group_mean(rewards)
    deviation = sqrt(mean([value * value for value in centred]))
    return [value / (deviation + STD_FLOOR) for value in centred]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """r_i - mean of the others."""
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def group_ratio(rewards: Sequence[float]) -> list[float]:
    """(r - mean(r)) / mean(r); nothing where the mean is 0: no answer was any good."""
    middle = mean(rewards)
    return (
        [0.0] * len(rewards) if middle == 0 else [(reward - middle) / middle for reward in rewards]
    )


def group_rank(rewards: Sequence[float]) -> list[float]:
    """(answers that are worse - answers that are better) / (all others): -1 to 1, whatever the rewards' scale."""
    others = max(1, len(rewards) - 1)
    return [
        (sum(other < reward for other in rewards) - sum(other > reward for other in rewards))
        / others
        for reward in rewards
    ]


OF_GROUP: dict[str, Advantages] = {
    "group_mean": group_mean,
    "group_std": group_std,
    "leave_one_out": leave_one_out,
    "group_ratio": group_ratio,
    "group_rank": group_rank,
}


def advantages_for(name: str) -> "Advantages | RunningMean":
    """What computes the advantages of that name."""
    return RunningMean() if name == "running_mean" else OF_GROUP[name]


class RunningMean:
    """r - the mean of all rewards before: a baseline that needs no group. The first group is held against 0."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """The advantages of a group, whose rewards then join the mean."""
        baseline = self.total / self.count if self.count else 0.0
        self.total, self.count = self.total + sum(rewards), self.count + len(rewards)
        return [reward - baseline for reward in rewards]

    def state(self) -> dict[str, float]:
        """Plain data for a checkpoint."""
        return {"total": self.total, "count": self.count}

    def load_state(self, state: dict[str, float]) -> None:
        """Takes over what `state` gave."""
        self.total, self.count = state["total"], int(state["count"])
