"""The ranks that work on a run together, as the recipe divides them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from titanrun.config.problems import fail
from titanrun.distributed.degrees import Degrees, degrees_of
from titanrun.distributed.device import device_name
from titanrun.distributed.flight_recorder import record_collectives
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.processes import fake_process_group, process_group
from titanrun.recipe.recipe import Recipe
from titanrun.worker.job import Job

SIMULATED = "fake_backend"


@contextmanager
def company(recipe: Recipe, job: Job, device: torch.device) -> Iterator[Meshes | None]:
    """The meshes of this rank while the ranks work together; None for one rank alone. Raises ProblemsFound where degrees do not fit."""
    degrees = degrees_for(recipe, simulated_ranks(recipe) or job.place.world_size)
    if recipe.comm.mode == SIMULATED:
        with fake_process_group(0, degrees.ranks):
            yield Meshes(degrees, device) if degrees.ranks > 1 else None
        return
    if job.store is None:
        yield None
        return
    record_collectives(recipe.comm, job.resolved.parent, device)
    with process_group(job.store, job.place, device=device, comm=recipe.comm):
        yield Meshes(degrees, device)


def simulated_ranks(recipe: Recipe) -> int | None:
    """How many ranks this process pretends to be among; None where all there are are real."""
    return recipe.launch.ranks or 1 if recipe.comm.mode == SIMULATED else None


def degrees_for(recipe: Recipe, ranks: int) -> Degrees:
    """The degrees of parallelism on the ranks that were started. Raises ProblemsFound where they do not fill them."""
    degrees = degrees_of(recipe.parallelism, ranks)
    if degrees is None or degrees.ranks != ranks:
        message = f"{ranks} {'process was' if ranks == 1 else 'processes were'} started, which the degrees of parallelism do not fill"
        raise fail(
            "conflict",
            message,
            path=("parallelism",),
            help=f"see titanrun validate --world-size {ranks}",
        )
    if degrees.expert > 1 and degrees.efsdp is None:
        message = f"{degrees.expert_ranks} expert ranks do not fit the {ranks} processes that were started"
        raise fail(
            "conflict",
            message,
            path=("parallelism", "expert_parallel_degree"),
            help=f"see titanrun validate --world-size {ranks}",
        )
    readers = recipe.training.local_batch_size * degrees.batch
    if int(recipe.training.global_batch_size) % readers:
        message = f"a global batch of {recipe.training.global_batch_size} rows cannot be split over {degrees.batch} data-parallel ranks"
        raise fail(
            "conflict",
            message,
            path=("training", "global_batch_size"),
            help=f"see titanrun validate --world-size {ranks}",
        )
    return degrees


def decisions(device: torch.device, meshes: Meshes | None) -> dict[str, object]:
    """What only the machine could decide."""
    degrees = Degrees() if meshes is None else meshes.degrees
    found: dict[str, object] = {
        "device": str(device),
        "device_name": device_name(device),
        "ranks": degrees.ranks,
    }
    return found | {"data_parallel_shard_degree": degrees.shard}
