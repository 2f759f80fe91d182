"""Sizes that follow from those of one rank, against those of the laid out model."""

from pathlib import Path

import pytest

from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.plan.plan_layout import ModuleSize
from titanrun.recipe.plan.split_sizes import measure_shares, split_sizes
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.commands.measure_memory import measure_rank_memory

RECIPES = Path(__file__).parents[3] / "recipes"
SHARD, TENSOR, EXPERT = (
    f"parallelism.{name}_degree"
    for name in ("data_parallel_shard", "tensor_parallel", "expert_parallel")
)


def resolve(name: str, ranks: int, *overrides: str) -> Recipe:
    words = ["training.local_batch_size=1", "training.global_batch_size=auto", *overrides]
    return resolve_recipe(str(RECIPES / name), words, environment={}, ranks=ranks).run


def measure(run: Recipe, ranks: int) -> list[ModuleSize]:
    parts = measure_rank_memory(run, ranks)
    return [ModuleSize(*sizes) for sizes in (parts["embedding"], *parts["layers"], parts["head"])]


@pytest.mark.parametrize(
    ("name", "ranks", "overrides"),
    [
        ("llama3_debug.yaml", 4, []),
        ("llama3_debug.yaml", 4, [f"{TENSOR}=2"]),
        ("llama3_lora_debug.yaml", 4, []),
        ("qwen3_moe_debug.yaml", 4, [f"{EXPERT}=2"]),
        ("qwen3_moe_debug.yaml", 4, [f"{TENSOR}=2", f"{EXPERT}=4"]),
    ],
)
def test_they_are_those_of_the_laid_out_model(name: str, ranks: int, overrides: list[str]) -> None:
    alone = resolve(name, 1)
    run = resolve(name, ranks, *overrides)
    dims = resolve_parallel_dims(run.parallelism, ranks)
    assert dims is not None
    found = split_sizes(measure_shares(run.model, measure(alone, 1)), dims)
    for ours, measured in zip(found, measure(run, ranks), strict=True):
        for field in ModuleSize.__slots__:
            # shards are padded, and tensor-parallel ranks keep some small matrices whole
            assert getattr(ours, field) == pytest.approx(getattr(measured, field), rel=0.03), field
