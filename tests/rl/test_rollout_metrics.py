"""Ages of the tokens of a step."""

from titanrun.rl.rollout_metrics import compute_age_histogram, compute_rollout_metrics
from titanrun.rl.rollout_packing import pack_rollouts
from titanrun.rl.rollout_types import Completion, Prompt, Rollout, RolloutGroup, Turn


def build_rollout(*completions: Completion) -> Rollout:
    turns = [Turn([0], completion, "") for completion in completions]
    return Rollout(0, 0, Prompt("q", "a"), turns)


def test_each_token_has_the_age_of_the_weights_that_generated_it() -> None:
    # of eight tokens five are of version 3, two of version 4 and one of version 5
    mixed = Completion([1] * 6, [0.0] * 6, "stop", 3, ((0, 3), (4, 4)))
    new, old = (Completion([1], [0.0], "stop", version) for version in (5, 3))
    group = RolloutGroup(0, 3, [build_rollout(mixed, new), build_rollout(old), build_rollout()])
    assert compute_age_histogram([group], policy_version=5, max_age=3) == {
        "rl/age_histogram/0": 1 / 8,
        "rl/age_histogram/1": 2 / 8,
        "rl/age_histogram/2": 5 / 8,
        "rl/age_histogram/3": 0.0,
    }


def test_a_step_without_tokens_has_no_ages() -> None:
    group = RolloutGroup(0, 0, [build_rollout()])
    assert compute_age_histogram([group], policy_version=0, max_age=1) == {
        "rl/age_histogram/0": 0.0,
        "rl/age_histogram/1": 0.0,
    }


def test_a_conversation_is_as_old_as_its_oldest_token_and_mixed_with_several_versions() -> None:
    within = Completion([1] * 6, [0.0] * 6, "stop", 3, ((0, 3), (4, 5)))
    new, old = (Completion([1], [0.0], "stop", version) for version in (5, 4))
    rollouts = [build_rollout(each) for each in (within, new, old)]
    rollouts += [build_rollout(old, new), build_rollout()]
    packed = pack_rollouts(
        [],
        seq_len=8,
        batch_multiple=1,
        should_pack=True,
        length_norm="token_mean",
        max_completion_tokens=6,
    )
    found = compute_rollout_metrics([RolloutGroup(0, 3, rollouts)], packed, policy_version=5)
    # one without a turn has no age: (2 + 0 + 1 + 1) / 4
    assert found["rl/age_mean"] == 1.0 and found["rl/age_max"] == 2.0
    assert found["rl/mixed_version_share"] == 2 / 5
