"""Layouts that torchtitan runs are not refused, and refusals follow from the arithmetic."""

from itertools import product
from pathlib import Path

import pytest

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """\
version: 1
model: {name: %s}
training: {dataset: {name: tokens, path: rows.npy}, seq_len: 256, local_batch_size: 8}
"""
DENSE, EXPERTS = "llama3, flavor: debugmodel", "qwen3, flavor: debugmodel_moe"
SHORT = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
    "schedule": "pipeline_parallel_schedule",
    "async_tp": "enable_async_tensor_parallel",
    "reshard": "fsdp_reshard_after_forward",
    "microbatch": "pipeline_parallel_microbatch_size",
}


def told(folder: Path, ranks: int, model: str = DENSE, **layout: object) -> list[Problem]:
    """What is wrong with a layout, but for what this version does not have."""
    (folder / "recipe.yaml").write_text(RECIPE % model, encoding="utf-8")
    overrides = [f"parallelism.{SHORT[name]}={value}" for name, value in layout.items()]
    try:
        found = resolve_recipe(
            str(folder / "recipe.yaml"), overrides, environment={}, ranks=ranks
        ).warnings
    except ProblemsFound as error:
        found = error.problems
    return [problem for problem in found if problem.code != "not-built"]


LAYOUTS = [
    (1, {}),
    (4, {}),
    (4, {"dp_replicate": 2}),
    (4, {"dp_replicate": 4, "dp_shard": 1}),
    (4, {"dp_replicate": 2, "reshard": "always"}),
    (4, {"dp_replicate": 2, "dp_shard": 1, "cp": 2}),
    (2, {"tp": 2}),
    (4, {"tp": 4, "dp_shard": 1}),
    (8, {"tp": 2, "dp_replicate": 2, "dp_shard": 2}),
    (4, {"cp": 4}),
    (8, {"cp": 2, "tp": 2, "dp_shard": 2}),
    (8, {"pp": 2, "tp": 2}),
    (8, {"pp": 4, "microbatch": 2}),
    (4, {"pp": 2, "schedule": "ZBVZeroBubble", "reshard": "never"}),
    (4, {"pp": 2, "schedule": "1F1B", "reshard": "always"}),
]


@pytest.mark.parametrize(("ranks", "layout"), LAYOUTS, ids=str)
def test_a_layout_that_runs_is_not_refused(
    ranks: int, layout: dict[str, object], tmp_path: Path
) -> None:
    assert told(tmp_path, ranks, **layout) == []


@pytest.mark.parametrize("schedule", PIPELINE_SCHEDULES)
def test_every_schedule_has_a_layout(schedule: str, tmp_path: Path) -> None:
    assert told(tmp_path, 4, pp=2, schedule=schedule) == []


# torchtitan once asked cp <= ep <= dp_shard x cp, ep % cp == 0 and dp_shard x cp % ep == 0, which
# nothing needs
@pytest.mark.parametrize(
    "layout",
    [
        {"cp": 4, "ep": 2},
        {"cp": 2, "tp": 2, "ep": 8},
        {"tp": 4, "ep": 2},
        {"tp": 2, "ep": 4, "etp": 2},
    ],
    ids=str,
)
def test_experts_are_bound_by_no_older_inequality(
    layout: dict[str, object], tmp_path: Path
) -> None:
    assert told(tmp_path, 8, EXPERTS, **layout) == []


def test_a_layout_is_refused_where_the_arithmetic_says_so(tmp_path: Path) -> None:
    for shard, context, tensor, expert in product((1, 2, 3), (1, 2), (1, 2), (2, 4, 8)):
        lent = shard * context * tensor
        problems = told(tmp_path, lent, EXPERTS, dp_shard=shard, cp=context, tp=tensor, ep=expert)
        assert ["expert-ranks-fit"] * (lent % expert != 0) == [problem.rule for problem in problems]


def test_one_tensor_parallel_rank_overlaps_nothing_and_needs_no_compiler(tmp_path: Path) -> None:
    refused = "async-tp-needs-compile"
    asked = {"async_tp": "true"}
    assert refused not in {problem.rule for problem in told(tmp_path, 2, **asked)}
    assert refused in {problem.rule for problem in told(tmp_path, 2, tp=2, **asked)}


def test_ranks_that_nobody_named_leave_the_shards_open(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE % DENSE, encoding="utf-8")
    assert resolve_recipe(str(file), environment={}).warnings == ()
    assert [problem.rule for problem in told(tmp_path, 8, tp=3)] == [
        "degrees-fill-ranks",
        "heads-divide-over-tp",
        "rows-divide-over-tp",
    ]


@pytest.mark.parametrize(
    ("layout", "is_refused"),
    [
        # every rank has a part of each expert
        ({"tp": 4}, True),
        ({"tp": 4, "ep": 2, "etp": 4}, True),
        # ranks keep experts whole
        ({"tp": 4, "ep": 4, "etp": 1}, False),
        ({"tp": 2}, False),
    ],
    ids=str,
)
def test_experts_are_split_equally_unless_ranks_keep_them_whole(
    layout: dict[str, object], is_refused: bool, tmp_path: Path
) -> None:
    found = told(tmp_path, 8, f"{EXPERTS}, moe: {{hidden_dim: 90}}", **layout)
    words = "moe.hidden_dim 90 is not divisible by tensor_parallel_degree 4"
    assert any(problem.message == words for problem in found) == is_refused
