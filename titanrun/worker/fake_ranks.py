"""The ranks of a run without the ranks: one process that sees the meshes of any of them, for what is built but never computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from titanrun.distributed.mesh import Meshes
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
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield Meshes(degrees, torch.device("cpu"))
    finally:
        dist.destroy_process_group()
