"""Process group and meshes of the ranks of a run."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from titanrun.config.problems import problem_error
from titanrun.distributed.device import get_device_name
from titanrun.distributed.flight_recorder import enable_flight_recorder
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import open_fake_process_group, open_process_group
from titanrun.distributed.spec.parallel_dims import ParallelDims, resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.worker.worker_job import WorkerJob

FAKE_BACKEND = "fake_backend"


@contextmanager
def init_distributed(
    recipe: Recipe, job: WorkerJob, device: torch.device
) -> Iterator[ParallelMeshes | None]:
    """Initialize the process group and yield this rank's meshes (None if world_size is 1).

    Raises:
        ProblemsFound: the degrees of parallelism do not fit the ranks.
    """
    degrees = build_parallel_dims(
        recipe, get_simulated_world_size(recipe) or job.rank_info.world_size
    )
    if recipe.comm.mode == FAKE_BACKEND:
        with open_fake_process_group(0, degrees.world_size):
            yield ParallelMeshes(degrees, device) if degrees.world_size > 1 else None
        return
    if job.store is None:
        yield None
        return
    enable_flight_recorder(recipe.comm, job.resolved_path.parent, device)
    with (
        open_process_group(job.store, job.rank_info, device=device, comm=recipe.comm),
        job.heartbeats or nullcontext(),
    ):
        yield ParallelMeshes(degrees, device)


def get_simulated_world_size(recipe: Recipe) -> int | None:
    """Return the number of simulated ranks, None if all ranks are real."""
    return recipe.launch.world_size or 1 if recipe.comm.mode == FAKE_BACKEND else None


def build_parallel_dims(recipe: Recipe, world_size: int) -> ParallelDims:
    """Return the degrees of parallelism for the started ranks.

    Raises:
        ProblemsFound: the degrees do not fit the ranks.
    """
    degrees = resolve_parallel_dims(recipe.parallelism, world_size)
    if degrees is None or degrees.world_size != world_size:
        were = "process was" if world_size == 1 else "processes were"
        message = f"{world_size} {were} started, but the degrees of parallelism need another number"
        raise problem_error(
            "conflict",
            message,
            path=("parallelism",),
            hint=f"see titanrun validate --world-size {world_size}",
        )
    if degrees.ep > 1 and degrees.efsdp_size is None:
        message = (
            f"{degrees.expert_group_size} expert ranks do not fit {world_size} started processes"
        )
        raise problem_error(
            "conflict",
            message,
            path=("parallelism", "expert_parallel_degree"),
            hint=f"see titanrun validate --world-size {world_size}",
        )
    samples_per_pass = recipe.training.local_batch_size * degrees.dp_size
    if int(recipe.training.global_batch_size) % samples_per_pass:
        message = (
            f"global_batch_size {recipe.training.global_batch_size} "
            f"is not divisible by {samples_per_pass} "
            f"(local_batch_size {recipe.training.local_batch_size} x {degrees.dp_size} "
            "data-parallel ranks)"
        )
        raise problem_error(
            "conflict",
            message,
            path=("training", "global_batch_size"),
            hint=f"see titanrun validate --world-size {world_size}",
        )
    return degrees


def collect_machine_decisions(
    device: torch.device, meshes: ParallelMeshes | None
) -> dict[str, object]:
    """Return the settings that depend on the machine."""
    degrees = ParallelDims() if meshes is None else meshes.parallel_dims
    found: dict[str, object] = {
        "device": str(device),
        "device_name": get_device_name(device),
        "ranks": degrees.world_size,
    }
    return found | {"data_parallel_shard_degree": degrees.dp_shard}
