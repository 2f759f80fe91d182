"""Simulated ranks: the meshes of any rank in one process, for builds without computation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import open_fake_process_group
from titanrun.recipe.recipe import Recipe
from titanrun.worker.process_group_setup import build_parallel_dims


@contextmanager
def simulate_rank(recipe: Recipe, rank: int, *, world_size: int) -> Iterator[ParallelMeshes | None]:
    """Simulate `rank` of `world_size` within the block and yield its meshes.

    Collectives do nothing. Yield None if world_size is 1.

    Raises:
        ProblemsFound: the degrees of parallelism do not fit the ranks.
    """
    degrees = build_parallel_dims(recipe, world_size)
    if world_size == 1:
        yield None
        return
    with open_fake_process_group(rank, world_size):
        yield ParallelMeshes(degrees, torch.device("cpu"))
