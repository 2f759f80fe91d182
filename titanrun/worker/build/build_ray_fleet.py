"""Builder of a fleet whose processes are actors of Ray. It is imported only where Ray is used."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.ray_cluster import open_cluster
from titanrun.rl.fleet.ray_options import build_actor_options
from titanrun.rl.fleet.ray_process import RayProcess
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreTransport
from titanrun.worker.rollout_actor import RolloutActor
from titanrun.worker.worker_job import WorkerJob

# run waits for messages, read_response for answers, and locate for nothing
THREADS = {"run": 1, "responses": 1}


def build_object_store_transport(config: RlConfig) -> ObjectStoreTransport:
    """Build the trainer's side of the transfer of weights."""
    return ObjectStoreTransport(
        ray.put, keep=config.sync.keep_versions, ranks=get_default_rank_group()
    )


def build_ray_processes(
    config: RlConfig, job: WorkerJob, transport: ObjectStoreTransport, exit_stack: ExitStack
) -> list[RayProcess]:
    """Open Ray until the exit stack closes, and build the processes of a fleet.

    Raises:
        ProblemsFound: no cluster answers, or it lacks resources.
    """
    open_cluster(config.fleet, exit_stack)
    return [
        RayProcess(
            number=number,
            open_actor=build_open_actor(config, job, number),
            log_file=job.resolved_path.parent / "logs" / f"generator-{number}.log",
            starts_left=config.fleet.max_restarts + 1,
            find_references=transport.find_references,
        )
        for number in range(config.fleet.processes)
    ]


def build_open_actor(
    config: RlConfig, job: WorkerJob, number: int
) -> Callable[[], tuple[Any, Any]]:
    """Build the function that starts an actor and its loop."""
    remote = ray.remote(concurrency_groups=THREADS)(RolloutActor)

    def open_actor() -> tuple[Any, Any]:
        actor = remote.options(**build_actor_options(config.fleet)).remote(ray.get)
        run = actor.run.options(concurrency_group="run")
        path = job.resolved_path.absolute()
        return actor, run.remote(path, job.resolved_text, number, Path.cwd())

    return open_actor
