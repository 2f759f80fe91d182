"""Groups that overtake each other within a window, on a clock of their own."""

import random
from math import floor

import pytest

from titanrun.rl.rollout_buffer import RolloutBuffer
from titanrun.rl.rollout_types import Prompt, Rollout, RolloutGroup


def group(number: int, born: int, *, done: bool = False) -> RolloutGroup:
    made = Rollout(number, 0, Prompt("", ""))
    made.status = "completed" if done else "ongoing"
    return RolloutGroup(number, born, [made])


@pytest.mark.parametrize(
    ("prompts", "offpolicy", "share"),
    [(4, 0, 0.3), (4, 1, 0.3), (3, 3, 0.3), (2, 3, 1.0), (5, 2, 0.0)],
)
def test_no_group_gets_older_than_the_bound_and_some_get_that_old(
    prompts: int, offpolicy: int, share: float
) -> None:
    window = RolloutBuffer(prompts, offpolicy, share)
    bound = floor((window.capacity + window.window - 2) / prompts) if offpolicy else 0
    assert window.max_version_lag == bound
    oldest = 0
    for seed in range(60):
        draws = random.Random(seed)
        window, number, turns = RolloutBuffer(prompts, offpolicy, share), 0, {}
        for version in range(30):
            taken: list[RolloutGroup] = []
            while len(taken) < prompts:
                while window.free_slots - len(taken) > 0:
                    window.groups.append(group(number, version))
                    turns[number] = draws.choice([1, 1, 1, 9])
                    number += 1
                for waiting in window.groups:
                    turns[waiting.number] -= 1
                    if turns[waiting.number] <= 0:
                        waiting.rollouts[0].status = "completed"
                taken += window.pop_finished(prompts - len(taken))
            oldest = max([oldest, *(version - each.policy_version for each in taken)])
    assert oldest <= bound
    assert oldest == bound


def test_the_window_lets_the_quick_overtake_and_begins_at_the_oldest() -> None:
    window = RolloutBuffer(2, 3, 0.3)  # of 8 groups the first 2
    window.groups = [group(number, 0, done=number != 0) for number in range(8)]
    assert [each.number for each in window.pop_finished(1)] == [1]
    assert window.pop_finished(5) == [] and window.free_slots == 1
    window.groups[0].rollouts[0].status = "completed"
    assert [each.number for each in window.pop_finished(5)] == [0, 2, 3, 4, 5]
