"""What a policy learns from: which groups are kept, and what their advantages are relative to."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rl.parts import TEXT, rollouter, write_recipe
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.rl.rewards.reward_function import RewardFunction
from titanrun.rl.rollout_source import RolloutLayout, RolloutSource, RolloutStep
from titanrun.rl.rollout_types import Prompt, Rollout, RolloutGroup
from titanrun.rl.state import RlState

# rewards of the two completions of each prompt
REWARDS: list[tuple[float | None, float | None]] = [
    (1.0, 1.0),
    (0.0, 0.0),
    (1.0, 0.0),
    (0.5, 0.5),
]


class Rewards:
    """A reward that gives the next pair of values to each group."""

    def __init__(self, pairs: list[tuple[float | None, float | None]]) -> None:
        self.pairs: Iterator[tuple[float | None, float | None]] = iter(pairs)

    def score(self, rollouts: list[Rollout]) -> list[float | None]:
        groups = sorted({rollout.group for rollout in rollouts})
        given = {group: list(next(self.pairs)) for group in groups}
        return [given[rollout.group].pop(0) for rollout in rollouts]

    def close(self) -> None:
        """Nothing is held open."""


def resolve(folder: Path, *overrides: str) -> Recipe:
    return load_resolved_text(
        resolve_recipe(write_recipe(folder, TEXT), overrides, environment={}).text
    )


def build_source(
    folder: Path, *overrides: str, pairs: list[tuple[float | None, float | None]]
) -> RolloutSource:
    """A source of one prompt a step, whose prompts are a0, a1 and so on."""
    run = resolve(
        folder, "rl.rollout.prompts_per_step=1", "rl.rollout.samples_per_prompt=2", *overrides
    )
    assert run.rl is not None
    engine: Any = SimpleNamespace(policy_version=0)
    indices = count()
    dataloader: Any = SimpleNamespace(next_indices=lambda: [next(indices)], state_dict=dict)
    prompts: Any = SimpleNamespace(get_prompt=lambda index: Prompt(f"a{index}", ""))
    return RolloutSource(
        config=run.rl,
        layout=RolloutLayout(seq_len=32, local_batch_size=1, should_pack=True),
        engine=engine,
        loss=lambda logits, batch: logits.sum(),
        dataloader=dataloader,
        prompt_dataset=prompts,
        runner=rollouter(
            folder, lambda text: "bc", rubric=RewardFunction({"given": (Rewards(pairs), 1.0)})
        ),
        weight_sync=SimpleNamespace(),  # type: ignore[arg-type]
        state=RlState(run.rl, engine),
    )


def learn(
    folder: Path, *overrides: str, pairs: list[tuple[float | None, float | None]] = REWARDS
) -> list[tuple[float, ...] | None]:
    """The advantages of each group, one group a step. None for a group that was dropped."""
    source = build_source(folder, *overrides, pairs=pairs)
    found: list[tuple[float, ...] | None] = []
    for _ in pairs:
        step = source.next_input()
        if step is None:
            found.append(None)
            continue
        payload: RolloutStep = step.payload
        used = payload.packed.batch.extra["advantages"][payload.packed.batch.label_mask()]
        found.append(tuple(dict.fromkeys(round(float(value), 4) for value in used)))
    return found


def test_a_running_baseline_learns_from_groups_of_equal_rewards(tmp_path: Path) -> None:
    """Row A5 of the defect list: groups that were all right or all wrong were dropped."""
    assert learn(tmp_path, "rl.algorithm=reinforce") == [
        (1.0,),  # no reward before
        (-1.0,),  # after 1, 1
        (0.5, -0.5),  # after 1, 1, 0, 0
        (0.0,),  # after 1, 1, 0, 0, 1, 0
    ]


def test_the_running_baseline_counts_the_groups_that_a_recipe_drops(tmp_path: Path) -> None:
    """Row A5 of the defect list: the baseline never saw dropped rewards."""
    pairs = [(1.0, 1.0), (1.0, 1.0), (1.0, 0.0)]
    dropping = learn(
        tmp_path, "rl.algorithm=reinforce", "rl.rollout.drop_zero_variance=true", pairs=pairs
    )
    assert dropping == [None, None, (0.0, -1.0)]


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "rloo", "max_rl", "gspo", "cispo"])
def test_advantages_within_a_group_drop_groups_of_equal_rewards(tmp_path: Path, name: str) -> None:
    found = learn(tmp_path, f"rl.algorithm={name}")
    assert [advantages is None for advantages in found] == [True, True, False, True]


@pytest.mark.parametrize(
    ("overrides", "drops"),
    [
        (["rl.algorithm=grpo"], True),
        (["rl.algorithm=dppo"], True),
        (["rl.algorithm={name: grpo, advantage: running_mean}"], False),
        (["rl.algorithm={name: reinforce, advantage: group_mean}"], True),
        (["rl.algorithm={name: grpo, entropy_coef: 0.01}"], False),
        (["rl.algorithm={name: grpo, kl: {coef: 0.1}}", "rl.reference=frozen_copy"], False),
        (["rl.algorithm=ref_kl", "rl.reference=frozen_copy"], False),
        (["rl.algorithm=reinforce", "rl.rollout.drop_zero_variance=true"], True),
        (["rl.algorithm=grpo", "rl.rollout.drop_zero_variance=false"], False),
    ],
)
def test_groups_of_equal_rewards_are_dropped_where_they_teach_nothing(
    tmp_path: Path, overrides: list[str], drops: bool
) -> None:
    """A penalty for divergence and the entropy have gradients without any reward."""
    rl = resolve(tmp_path, *overrides).rl
    assert rl is not None and rl.rollout.drop_zero_variance is drops


def test_one_completion_a_prompt_needs_no_further_setting(tmp_path: Path) -> None:
    resolve(tmp_path, "rl.algorithm=reinforce", "rl.rollout.samples_per_prompt=1")


def test_a_group_with_one_reward_left_has_no_leave_one_out_advantage(tmp_path: Path) -> None:
    """It was a division by zero where such groups are kept."""
    found = learn(
        tmp_path,
        "rl.algorithm=rloo",
        "rl.rollout.drop_zero_variance=false",
        pairs=[(1.0, None), (1.0, 0.0)],
    )
    assert found == [(0.0,), (1.0, -1.0)]


def test_distillation_needs_no_reward_to_learn_from_a_completion(tmp_path: Path) -> None:
    pairs: list[tuple[float | None, float | None]] = [(None, None), (1.0, None)]
    found = learn(tmp_path, "rl.algorithm=ref_kl", "rl.reference=frozen_copy", pairs=pairs)
    assert None not in found


def test_the_prompt_of_a_group_that_is_too_old_is_asked_again(tmp_path: Path) -> None:
    schedule = "rl.schedule={target_offpolicy: 2, window: 1.0, max_age: 0}"
    source = build_source(tmp_path, schedule, pairs=[(1.0, 0.0)] * 9)
    assert source.config.schedule.on_too_old == "drop"

    def learned() -> list[str]:
        step = source.next_input()
        assert step is not None
        return [group.rollouts[0].question.prompt for group in step.payload.groups]

    def waiting() -> list[str]:
        groups = source.state.rollout_buffer.groups
        return [group.rollouts[0].question.prompt for group in groups]

    assert learned() == ["a0"] and waiting() == ["a1", "a2"]
    source.engine.policy_version = 1  # type: ignore[misc]
    source.runner.generator.version = 1  # type: ignore[union-attr]
    assert learned() == ["a3"] and waiting() == ["a1", "a2"]
    assert [group.policy_version for group in source.state.rollout_buffer.groups] == [1, 1]
    assert source._collect_dropped()["rl/dropped_old"] == 2
    assert source._collect_dropped()["rl/dropped_old"] == 0


@pytest.mark.parametrize("limit", ["", "max_age: 1, on_too_old: error, "])
def test_a_group_that_is_too_old_ends_the_run_unless_it_is_dropped(
    tmp_path: Path, limit: str
) -> None:
    schedule = f"rl.schedule={{{limit}target_offpolicy: 2, window: 0.0}}"
    source = build_source(tmp_path, schedule, pairs=[(1.0, 0.0)] * 9)
    assert source.next_input() is not None
    source.engine.policy_version = 3 if not limit else 2  # type: ignore[misc]
    with pytest.raises(ProblemsFound, match=r"group 1 is too old: it was started [23] versions"):
        source.next_input()
    assert not any(source._collect_dropped().values())


def test_a_group_that_is_older_than_the_window_allows_is_dropped_where_that_is_asked(
    tmp_path: Path,
) -> None:
    schedule = "rl.schedule={target_offpolicy: 2, window: 0.0, on_too_old: drop}"
    source = build_source(tmp_path, schedule, pairs=[(1.0, 0.0)] * 9)
    assert source.next_input() is not None
    source.engine.policy_version = 3  # type: ignore[misc]
    source.runner.generator.version = 3  # type: ignore[union-attr]
    step = source.next_input()
    assert step is not None and step.payload.groups[0].policy_version == 3
    assert source._collect_dropped()["rl/dropped_old"] == 2


def test_dropped_groups_are_counted_by_their_reason(tmp_path: Path) -> None:
    pairs: list[tuple[float | None, float | None]] = [(1.0, 1.0), (None, None), (0.0, 0.0)]
    source = build_source(tmp_path, "rl.algorithm=grpo", pairs=[*pairs, (1.0, None), (1.0, 0.0)])
    for _ in range(4):
        assert source.next_input() is None
    assert source.next_input() is not None
    reasons = {"rl/dropped_old": 0, "rl/dropped_flat": 3, "rl/dropped_future": 0}
    # a group with one reward left has no variance
    assert source._collect_dropped() == {**reasons, "rl/dropped_error": 1}
    assert not any(source._collect_dropped().values())


def test_groups_that_a_rollback_drops_are_counted(tmp_path: Path) -> None:
    source = build_source(
        tmp_path, "rl.schedule={target_offpolicy: 2, window: 0.0}", pairs=[(1.0, 0.0)] * 9
    )
    source.weight_sync = SimpleNamespace(sync_after_rollback=lambda engine: None)  # type: ignore[assignment]
    assert source.next_input() is not None and len(source.state.rollout_buffer.groups) == 2
    source.on_rollback(0)
    assert source._collect_dropped()["rl/dropped_future"] == 2


def test_the_fleet_is_told_how_many_tokens_were_trained(tmp_path: Path) -> None:
    source = build_source(tmp_path, pairs=[(1.0, 0.0)] * 3)
    source.weight_sync = SimpleNamespace(sync_weights=lambda engine: None)  # type: ignore[assignment]
    steps = []
    for number in range(3):
        step = source.next_input()
        assert step is not None
        steps.append(step)
        # the second update was rejected
        if number != 1:
            source.on_update(number)
    told = []

    def collect(*, num_tokens: int) -> dict[str, float]:
        told.append(num_tokens)
        # a restarted trainer's fleet counts groups of the earlier one
        return {"rl/dropped_future": 3.0}

    source.runner = SimpleNamespace(collect_metrics=collect)  # type: ignore[assignment]
    source._num_dropped["future"] = 1
    found = source.collect_metrics({}, steps[-1])
    # of the steps since the last metrics, which need not be logged each
    tokens = [step.payload.packed.num_tokens for step in steps]
    # two completions of three tokens each, the end token among them
    assert told == [tokens[0] + tokens[2]] and tokens[0] in range(4, 8)
    assert found["rl/dropped_future"] == 4 and found["rl/dropped_flat"] == 0
    source.collect_metrics({}, steps[-1])
    assert told[1] == 0


def test_the_prompt_of_a_group_that_was_given_up_is_asked_again(tmp_path: Path) -> None:
    source = build_source(tmp_path, pairs=[(1.0, 0.0)] * 3)
    runner, lost = source.runner, [0]

    def generate_turn(groups: list[RolloutGroup], **options: Any) -> None:
        for group in [group for group in groups if group.number in lost]:
            group.rollouts[1].status = "error_generator"
            lost.remove(group.number)
        runner.generate_turn(groups, **options)

    source.runner = SimpleNamespace(  # type: ignore[assignment]
        start_group=runner.start_group, generate_turn=generate_turn, clock=runner.clock
    )
    step = source.next_input()
    assert step is not None
    (group,) = step.payload.groups
    assert (group.number, group.rollouts[0].question.prompt) == (1, "a0")
    assert source._collect_dropped()["rl/dropped_error"] == 1
