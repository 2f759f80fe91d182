"""Builder of generation in other processes: runner and weight synchronization of a fleet."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error
from titanrun.distributed.device import choose_device_index
from titanrun.distributed.object_collectives import new_file_io_group
from titanrun.distributed.rank_env import build_single_device_environment, set_variable_default
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.package_versions import is_installed
from titanrun.rl.config import RlConfig
from titanrun.rl.fleet.fleet_process import FleetProcess
from titanrun.rl.fleet.fleet_runner import FleetRunner, FleetWeightSync
from titanrun.rl.fleet.fleet_usage import FleetUsage
from titanrun.rl.fleet.named_pipes import NamedPipes, lock_trainer
from titanrun.rl.fleet.rollout_fleet import RolloutFleet
from titanrun.rl.fleet.rollout_process import RolloutProcess
from titanrun.rl.fleet.step_clock import StepClock
from titanrun.rl.schedule_record import ScheduleRecorder
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreTransport
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.worker.build.build_http_fleet import (
    build_connection_transport,
    build_http_processes,
)
from titanrun.worker.build.build_rollouts import (
    WEIGHTS_FOLDER,
    build_weight_transport,
    get_generator_dtype,
    get_sent_names,
)
from titanrun.worker.worker_job import WorkerJob

if TYPE_CHECKING:
    from titanrun.worker.build import build_ray_fleet
else:
    build_ray_fleet = LazyModule("titanrun.worker.build.build_ray_fleet")

# folder of the pipes to processes that outlive a trainer
PIPES_FOLDER = "fleet"


def build_fleet(
    recipe: Recipe, config: RlConfig, job: WorkerJob, recorder: ScheduleRecorder | None
) -> tuple[FleetRunner, FleetWeightSync]:
    """Build the runner and the weight synchronization of a fleet, and start its processes.

    Only the first rank has the processes. Collective: all ranks must call this. The recorder writes
    down who generates what.
    """
    ranks, clock = new_file_io_group(), StepClock()
    transport: WeightTransport
    if config.fleet.carrier == "ray":
        require_ray()
        # a late question of a thread would start another Ray after the end of this one
        set_variable_default("RAY_ENABLE_AUTO_CONNECT", "0")
        if config.fleet.address is None:
            # one that titanrun starts asks for its token, and this process has to join it
            set_variable_default("RAY_AUTH_MODE", "token")
        transport = build_ray_fleet.build_object_store_transport(config)
    elif config.fleet.carrier == "http":
        transport = build_connection_transport(config)
    else:
        transport = build_weight_transport(config, job.resolved_path.parent / WEIGHTS_FOLDER)
    runner = FleetRunner(
        start_fleet(config, job, clock, transport, recorder) if ranks.rank == 0 else None,
        config.rollout.samples_per_prompt,
        ranks,
        clock,
    )
    weight_sync = FleetWeightSync(
        transport, runner, get_generator_dtype(recipe, config), get_sent_names(recipe)
    )
    return runner, weight_sync


def require_ray() -> None:
    """Raise ProblemsFound if Ray is not installed."""
    if not is_installed("ray"):
        raise problem_error(
            "usage",
            "rl.fleet.carrier ray needs the package 'ray', which is not installed",
            path=("rl", "fleet", "carrier"),
            hint='pip install "titanrun[ray]"',
        )


def start_fleet(
    config: RlConfig,
    job: WorkerJob,
    clock: StepClock,
    transport: WeightTransport,
    recorder: ScheduleRecorder | None = None,
) -> RolloutFleet:
    """Start the processes, each with an equal part of a step's conversations at once."""
    processes: Sequence[FleetProcess]
    with ExitStack() as carrier:
        if not isinstance(transport, ObjectStoreTransport):
            processes = build_local_processes(config, job)
        elif config.fleet.carrier == "http":
            processes = build_http_processes(config, job, transport)
        else:
            processes = build_ray_fleet.build_ray_processes(
                config, job, transport, job.resolved_path.parent / PIPES_FOLDER, carrier
            )
        fleet = RolloutFleet(
            processes,
            max_running=-(-config.rollout.prompts_per_step // len(processes))
            * config.rollout.samples_per_prompt,
            timeout_seconds=config.fleet.timeout_seconds,
            router=config.fleet.router,
            usage=FleetUsage(clock),
            min_generators=config.fleet.min_generators,
            wait_seconds=config.fleet.wait_seconds,
            recorder=recorder,
        )
        fleet.start()
        fleet.carrier = carrier.pop_all()
    return fleet


def build_local_processes(config: RlConfig, job: WorkerJob) -> list[RolloutProcess]:
    """Build processes of this machine, which read and write pipes."""
    logs = job.resolved_path.parent / "logs"
    folder, lifeline = job.resolved_path.parent / PIPES_FOLDER, job.rank_info.lifeline
    if lifeline is not None:
        # held until this process ends, in whatever way
        lock_trainer(folder)
    return [
        RolloutProcess(
            number=number,
            command=[
                sys.executable,
                "-m",
                "titanrun.worker.rollout_worker",
                str(job.resolved_path),
                str(number),
            ],
            log_file=logs / f"generator-{number}.log",
            environment={
                **build_single_device_environment(choose_device_index(number)),
                "OMP_NUM_THREADS": str(config.fleet.threads),
            },
            starts_left=config.fleet.max_restarts + 1,
            pipes=None if lifeline is None else NamedPipes(folder, f"generator-{number}", lifeline),
        )
        for number in range(config.fleet.processes)
    ]
