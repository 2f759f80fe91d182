"""Builder of generation in other processes: runner and weight synchronization of a fleet."""

import sys

from titanrun.distributed.device import choose_device_index
from titanrun.distributed.object_collectives import new_file_io_group
from titanrun.distributed.rank_env import build_single_device_environment
from titanrun.recipe.recipe import Recipe
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.fleet_runner import FleetRunner, FleetWeightSync
from titanrun.rl.fleet.fleet_usage import FleetUsage
from titanrun.rl.fleet.named_pipes import NamedPipes, lock_trainer
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.rollout_process import RolloutProcess
from titanrun.rl.fleet.step_clock import StepClock
from titanrun.worker.build.build_rollouts import (
    WEIGHTS_FOLDER,
    build_weight_transport,
    get_generator_dtype,
    get_sent_names,
)
from titanrun.worker.worker_job import WorkerJob

# folder of the pipes to processes that outlive a trainer
PIPES_FOLDER = "fleet"


def build_fleet(
    recipe: Recipe, config: RlConfig, job: WorkerJob
) -> tuple[FleetRunner, FleetWeightSync]:
    """Build the runner and the weight synchronization of a fleet, and start its processes.

    Only the first rank has the processes. Collective: all ranks must call this.
    """
    ranks, clock = new_file_io_group(), StepClock()
    runner = FleetRunner(
        start_fleet(config, job, clock) if ranks.rank == 0 else None,
        config.rollout.samples_per_prompt,
        ranks,
        clock,
    )
    weight_sync = FleetWeightSync(
        build_weight_transport(config, job.resolved_path.parent / WEIGHTS_FOLDER),
        runner,
        get_generator_dtype(recipe, config),
        get_sent_names(recipe),
    )
    return runner, weight_sync


def start_fleet(config: RlConfig, job: WorkerJob, clock: StepClock) -> RolloutFleet:
    """Start the processes, each with an equal part of a step's conversations at once."""
    logs, count = job.resolved_path.parent / "logs", config.fleet.processes
    folder, lifeline = job.resolved_path.parent / PIPES_FOLDER, job.rank_info.lifeline
    if lifeline is not None:
        # held until this process ends, in whatever way
        lock_trainer(folder)
    fleet = RolloutFleet(
        [
            RolloutProcess(
                number,
                [
                    sys.executable,
                    "-m",
                    "titanrun.worker.rollout_worker",
                    str(job.resolved_path),
                    str(number),
                ],
                logs / f"generator-{number}.log",
                {
                    **build_single_device_environment(choose_device_index(number)),
                    "OMP_NUM_THREADS": str(config.fleet.threads),
                },
                starts_left=config.fleet.max_restarts + 1,
                pipes=None if lifeline is None else NamedPipes(folder, number, lifeline),
            )
            for number in range(count)
        ],
        max_running=-(-config.rollout.prompts_per_step // count)
        * config.rollout.samples_per_prompt,
        timeout_seconds=config.fleet.timeout_seconds,
        router=config.fleet.router,
        usage=FleetUsage(clock),
    )
    fleet.start()
    return fleet
