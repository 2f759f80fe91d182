"""The ranks of a run without the ranks: one process that sees the meshes of any of them, for what is built but never computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import fake_process_group
from titanrun.recipe.recipe import Recipe
from titanrun.worker.company import degrees_for


@contextmanager
def as_rank(recipe: Recipe, rank: int, *, world_size: int) -> Iterator[Meshes | None]:
    """Within the block this process is `rank` of `world_size`, whose collectives do nothing; None for one rank alone.

    Raises ProblemsFound where the degrees of parallelism do not fill the ranks.
    """
    degrees = degrees_for(recipe, world_size)
    if world_size == 1:
        yield None
        return
    with fake_process_group(rank, world_size):
        yield Meshes(degrees, torch.device("cpu"))
