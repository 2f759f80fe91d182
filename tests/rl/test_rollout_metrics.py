"""Ages of the tokens of a step."""

from titanrun.rl.rollout_metrics import compute_age_shares
from titanrun.rl.rollout_types import Completion, Prompt, Rollout, RolloutGroup, Turn


def build_rollout(*completions: Completion) -> Rollout:
    turns = [Turn([0], completion, "") for completion in completions]
    return Rollout(0, 0, Prompt("q", "a"), turns)


def test_each_token_has_the_age_of_the_weights_that_generated_it() -> None:
    # of eight tokens five are of version 3, two of version 4 and one of version 5
    mixed = Completion([1] * 6, [0.0] * 6, "stop", 3, ((0, 3), (4, 4)))
    new, old = (Completion([1], [0.0], "stop", version) for version in (5, 3))
    group = RolloutGroup(0, 3, [build_rollout(mixed, new), build_rollout(old), build_rollout()])
    assert compute_age_shares([group], policy_version=5, max_age=3) == {
        "rollout/age_share/0": 1 / 8,
        "rollout/age_share/1": 2 / 8,
        "rollout/age_share/2": 5 / 8,
        "rollout/age_share/3": 0.0,
    }


def test_a_step_without_tokens_has_no_ages() -> None:
    group = RolloutGroup(0, 0, [build_rollout()])
    assert compute_age_shares([group], policy_version=0, max_age=1) == {
        "rollout/age_share/0": 0.0,
        "rollout/age_share/1": 0.0,
    }
