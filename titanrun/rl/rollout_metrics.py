"""Metrics of a step's rollouts."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, pstdev

from titanrun.rl.rollout_packing import PackedRollouts
from titanrun.rl.rollout_types import TRUNCATED_STATUSES, RolloutGroup


def compute_rollout_metrics(
    groups: Sequence[RolloutGroup], packed: PackedRollouts, *, policy_version: int
) -> dict[str, float]:
    """Compute the metrics of a step's groups by name.

    Args:
        groups: the groups of the step.
        packed: their packed sequences.
        policy_version: version of the weights that learned from them.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [float(rollout.reward or 0.0) for rollout in scored]
    ages = [policy_version - rollout.oldest_version for rollout in rollouts if rollout.turns]
    flat = [group for group in groups if len({rollout.reward for rollout in group.rollouts}) <= 1]
    values: dict[str, float] = {
        "rollout/reward_mean": fmean(rewards) if rewards else 0.0,
        "rollout/reward_std": pstdev(rewards) if rewards else 0.0,
        "rollout/reward_max": max(rewards, default=0.0),
        "rollout/tokens_mean": fmean(rollout.num_completion_tokens for rollout in rollouts),
        "rollout/turns_mean": fmean(len(rollout.turns) for rollout in rollouts),
        "rollout/truncated_share": fmean(
            rollout.status in TRUNCATED_STATUSES for rollout in rollouts
        ),
        "rollout/flat_groups": float(len(flat)),
        "rollout/dropped_without_reward": float(len(rollouts) - len(scored)),
        "rollout/dropped_too_long": float(packed.num_dropped),
        "rl/age_mean": fmean(ages) if ages else 0.0,
        "rl/age_max": float(max(ages, default=0)),
        "rl/mixed_version_share": fmean(rollout.has_mixed_versions for rollout in rollouts),
        "rollout/row_fill": packed.fill_fraction,
    }
    for name in sorted({name for rollout in scored for name in rollout.parts}):
        values[f"rollout/reward_{name}"] = fmean(
            rollout.parts[name] for rollout in scored if name in rollout.parts
        )
    return values


def compute_age_histogram(
    groups: Sequence[RolloutGroup], *, policy_version: int, max_age: int
) -> dict[str, float]:
    """Compute the share of the generated tokens of each age from 0 to `max_age`.

    The age of a token is the number of updates since the weights that generated it.

    Args:
        groups: the groups of the step.
        policy_version: version of the weights that learned from them.
        max_age: highest age of a group.
    """
    ages = Counter(
        policy_version - version
        for group in groups
        for rollout in group.rollouts
        for turn in rollout.turns
        for version in turn.completion.versions
    )
    total = max(1, ages.total())
    return {f"rl/age_histogram/{age}": ages[age] / total for age in range(max_age + 1)}
