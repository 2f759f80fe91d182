"""Advantages: the value of each completion relative to its group."""

from collections.abc import Callable, Sequence
from math import sqrt

STD_FLOOR = 1e-6
AdvantageFn = Callable[[Sequence[float]], list[float]]


def compute_mean(values: Sequence[float]) -> float:
    """Compute the arithmetic mean."""
    return sum(values) / len(values)


def subtract_group_mean(rewards: Sequence[float]) -> list[float]:
    """Compute r - mean(r)."""
    middle = compute_mean(rewards)
    return [reward - middle for reward in rewards]


def normalize_by_group_std(rewards: Sequence[float]) -> list[float]:
    """Compute (r - mean(r)) / (std(r) + 1e-6) with the population standard deviation."""
    centered = subtract_group_mean(rewards)
    deviation = sqrt(compute_mean([value * value for value in centered]))
    return [value / (deviation + STD_FLOOR) for value in centered]


def subtract_leave_one_out_mean(rewards: Sequence[float]) -> list[float]:
    """Compute r_i - mean of the other rewards.

    A single reward has no others: its advantage is 0.
    """
    total, others = sum(rewards), len(rewards) - 1
    if others == 0:
        return [0.0]
    return [reward - (total - reward) / others for reward in rewards]


def divide_by_group_mean(rewards: Sequence[float]) -> list[float]:
    """Compute (r - mean(r)) / mean(r).

    Return zeros if the mean is 0, because no completion got a reward.
    """
    middle = compute_mean(rewards)
    return (
        [0.0] * len(rewards) if middle == 0 else [(reward - middle) / middle for reward in rewards]
    )


def rank_in_group(rewards: Sequence[float]) -> list[float]:
    """Compute (number of worse completions - number of better ones) / number of all others.

    The result is from -1 to 1, independent of the scale of the rewards.
    """
    others = max(1, len(rewards) - 1)
    return [
        (sum(other < reward for other in rewards) - sum(other > reward for other in rewards))
        / others
        for reward in rewards
    ]


GROUP_ADVANTAGES: dict[str, AdvantageFn] = {
    "group_mean": subtract_group_mean,
    "group_std": normalize_by_group_std,
    "leave_one_out": subtract_leave_one_out_mean,
    "group_ratio": divide_by_group_mean,
    "group_rank": rank_in_group,
}


def build_advantage_fn(name: str) -> "AdvantageFn | RunningMeanBaseline":
    """Return the function that computes the advantages of that name."""
    return RunningMeanBaseline() if name == "running_mean" else GROUP_ADVANTAGES[name]


class RunningMeanBaseline:
    """Advantages r - mean of all earlier rewards, a baseline that needs no group.

    The baseline of the first group is 0.
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """Compute the advantages of a group, then add its rewards to the mean."""
        baseline = self.total / self.count if self.count else 0.0
        self.total, self.count = self.total + sum(rewards), self.count + len(rewards)
        return [reward - baseline for reward in rewards]

    def state_dict(self) -> dict[str, float]:
        """Return the state as plain data for a checkpoint."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        self.total, self.count = state_dict["total"], int(state_dict["count"])
