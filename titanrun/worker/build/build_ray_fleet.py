"""Builder of a fleet whose processes are actors of Ray. It is imported only where Ray is used."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.rank_env import get_environment_variables
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.actor_owner import ActorOwner
from titanrun.rl.fleet.named_pipes import NamedPipes, lock_trainer
from titanrun.rl.fleet.ray_cluster import check_address
from titanrun.rl.fleet.ray_options import check_resources
from titanrun.rl.fleet.ray_process import RayProcess
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreTransport
from titanrun.worker.worker_job import WorkerJob

# seconds that the owner gets to end its Ray
STOP_SECONDS = 30.0


def build_object_store_transport(config: RlConfig) -> ObjectStoreTransport:
    """Build the trainer's side of the transfer of weights."""
    return ObjectStoreTransport(
        ray.put, keep=config.sync.keep_versions, ranks=get_default_rank_group()
    )


def build_ray_processes(
    config: RlConfig,
    job: WorkerJob,
    transport: ObjectStoreTransport,
    pipes_folder: Path,
    exit_stack: ExitStack,
) -> list[RayProcess]:
    """Open Ray until the exit stack closes, and build the processes of a fleet.

    Raises:
        ProblemsFound: no cluster answers, or it lacks resources.
    """
    owner = build_owner(config, job, pipes_folder, exit_stack)
    owner.join(exit_stack)
    check_resources(config.fleet, ray.cluster_resources())
    return [
        RayProcess(
            number=number,
            owner=owner,
            run=build_run(job, number),
            log_file=job.resolved_path.parent / "logs" / f"generator-{number}.log",
            starts_left=config.fleet.max_restarts + 1,
            find_references=transport.find_references,
        )
        for number in range(config.fleet.processes)
    ]


def build_owner(
    config: RlConfig, job: WorkerJob, folder: Path, exit_stack: ExitStack
) -> ActorOwner:
    """Build the owner of the actors, which ends with the launcher, or else with this process.

    Raises:
        ProblemsFound: nobody listens at the address of the cluster.
    """
    address = config.fleet.address
    if ray.is_initialized():
        address = ray.get_runtime_context().gcs_address
    elif address is not None:
        check_address(address)
    lifeline = job.rank_info.lifeline
    if lifeline is None:
        lifeline, writing = os.pipe()
        for descriptor in (lifeline, writing):
            exit_stack.callback(os.close, descriptor)
    # held until this process ends, in whatever way, or has closed the owner
    exit_stack.callback(os.close, lock_trainer(folder))
    return ActorOwner(
        number=0,
        command=[
            sys.executable,
            "-m",
            "titanrun.worker.ray_owner",
            str(job.resolved_path),
            address or "",
        ],
        log_file=job.resolved_path.parent / "logs" / "ray-owner.log",
        environment=get_environment_variables(),
        starts_left=1,
        pipes=NamedPipes(folder, "ray-owner", lifeline),
        stop_seconds=STOP_SECONDS,
    )


def build_run(job: WorkerJob, number: int) -> Callable[[Any], Any]:
    """Build the function that starts the loop of an actor."""
    path, folder = job.resolved_path.absolute(), Path.cwd()

    def run(actor: Any) -> Any:
        loop = actor.run.options(concurrency_group="run")
        return loop.remote(path, job.resolved_text, number, folder)

    return run
