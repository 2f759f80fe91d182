"""Process environment: the only torch-free module that reads os.environ."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.trust import TRUST_VARIABLE
from titanrun.launch.host_address import LOOPBACK, HostAddress
from titanrun.launch.host_info import count_usable_cores
from titanrun.recipe.moved_paths import MOVED_VARIABLE
from titanrun.recipe.rundir.run_notification import NOTIFY_VARIABLE

LOG_FORMAT = "TITANRUN_LOG_FORMAT"
# rendezvous port range of a Slurm job, which separates it from other jobs on the same machine
FIRST_PORT = 20000
NUM_PORTS = 10000
# set by Slurm for each task if accelerators are bound to tasks (--gpus-per-task, --gpu-bind)
TASK_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")

# how often a compute thread that waits for the others looks before it sleeps. libgomp's 300,000
# takes milliseconds, a step several times as long where other programs compute too
SPIN_COUNT = 1000


def get_environment() -> Mapping[str, str]:
    """Return the environment variables that recipes may name in `${env:NAME}`."""
    return dict(os.environ)


def disable_pydantic_plugins() -> None:
    """Keep pydantic from importing plug-ins that other packages register with it.

    They would run foreign code in `validate` and need a search of all packages.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def silence_workers() -> None:
    """Make workers started by this process log only warnings and errors to the console."""
    os.environ["TITANRUN_QUIET"] = "1"


def set_log_format(log_format: str) -> None:
    """Set the console log format of this process and those it starts: text or json."""
    os.environ[LOG_FORMAT] = log_format


def is_json_log_format() -> bool:
    """Return whether each line on the console is a JSON object."""
    return os.environ.get(LOG_FORMAT) == "json"


def set_notify_command(command: str) -> None:
    """Set the command that reports the end of a run started by this process."""
    os.environ[NOTIFY_VARIABLE] = command


def set_trust(allowed: str | None) -> None:
    """Set which code that recipes name may run in this process and its children without asking.

    None: only code that was allowed before. This overrides the environment.
    """
    os.environ.pop(TRUST_VARIABLE, None)
    if allowed is not None:
        os.environ[TRUST_VARIABLE] = allowed


def get_trust() -> str | None:
    """Return which code the command line allows to run without asking."""
    return os.environ.get(TRUST_VARIABLE)


def set_moved_paths(moved: Mapping[str, str]) -> None:
    """Set where inputs of saved recipes are now, for this process and those it starts."""
    os.environ[MOVED_VARIABLE] = json.dumps(dict(moved))


def build_stop_after_environment(step: int) -> dict[str, str]:
    """Build the environment of a run that stops after a step but keeps its whole schedule."""
    return {**os.environ, "TITANRUN_STOP_AFTER": str(step)}


def build_thread_variables(num_workers: int) -> dict[str, str]:
    """Return the default variables of a worker's compute threads.

    The cores are divided over `num_workers` workers. A wait policy of the user's stays.
    """
    variables = {"OMP_NUM_THREADS": str(max(1, count_usable_cores() // num_workers))}
    if "OMP_WAIT_POLICY" not in os.environ:
        variables["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return variables


def build_threads_environment(num_workers: int) -> dict[str, str]:
    """Build the environment that sets the compute threads of a worker.

    The cores are divided over `num_workers` workers.
    """
    return {**build_thread_variables(num_workers), **os.environ}


def build_worker_environment(
    rank: int,
    num_workers: int,
    *,
    host: str = LOOPBACK.address,
    interface: str | None = LOOPBACK.interface,
    port: int,
    failure_file: Path,
) -> dict[str, str]:
    """Build the environment of one of `num_workers` workers on this machine.

    It contains torchrun's variables, the path of the file for a failure report, and the id of this
    process. `host` is an address of this machine, on `interface` if that is known.
    """
    defaults = {}
    if interface is not None:
        # gloo would look up the host name, which fails on many laptops
        defaults["GLOO_SOCKET_IFNAME"] = interface
    places = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_workers,
        "LOCAL_WORLD_SIZE": num_workers,
        "MASTER_PORT": port,
    }
    told = {
        "MASTER_ADDR": host,
        "TITANRUN_FAILURE_FILE": str(failure_file),
        "TITANRUN_LAUNCHER": str(os.getpid()),
    }
    return {
        **defaults,
        **build_threads_environment(num_workers),
        **{name: str(number) for name, number in places.items()},
        **told,
    }


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Replica group of a worker, and how it finds the other groups.

    Args:
        group: number of the group.
        index: its number among the groups of this launcher.
        num_groups: groups of this launcher.
        lighthouse: address at which the groups find each other.
        own: where this machine listens for the other groups.
    """

    group: int
    index: int
    num_groups: int
    lighthouse: str
    own: HostAddress = LOOPBACK


def build_group_environment(place: GroupPlace, rank: int, num_workers: int) -> dict[str, str]:
    """Build what the environment of a rank in a replica group has beside that of a plain rank.

    Args:
        place: its group.
        rank: rank in the group.
        num_workers: ranks of the group.
    """
    index = place.index * num_workers + rank
    variables = {
        # the accelerators of the machine are shared out among its groups
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(place.num_groups * num_workers),
        "OMP_NUM_THREADS": build_threads_environment(place.num_groups * num_workers)[
            "OMP_NUM_THREADS"
        ],
        "TITANRUN_GROUP": str(place.group),
        "TITANRUN_LIGHTHOUSE": place.lighthouse,
        # each step would be a line of torchft's servers
        "RUST_LOG": os.environ.get("RUST_LOG", "error"),
    }
    return variables if place.index == 0 else {**variables, "TITANRUN_QUIET": "1"}


def build_node_environment(
    failures: Path, num_workers: int, *, is_loopback: bool
) -> dict[str, str]:
    """Build the environment of the workers of one of several machines.

    torch.distributed.run adds to it.
    """
    # torch's C++ side would print its stacks after another machine has left
    defaults = {
        **build_thread_variables(num_workers),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if is_loopback and sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {**defaults, **os.environ, "TITANRUN_FAILURE_FOLDER": str(failures)}


def build_rank_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment with torchrun's variables, also if srun started the ranks.

    A batch script and an allocation have a size too, but only a process started by srun has a step
    with several tasks.
    """
    steps = {
        name: environ.get(f"SLURM_{name}", "")
        for name in ("STEP_NUM_TASKS", "PROCID", "LOCALID", "JOB_ID", "STEP_NODELIST")
    }
    if (
        "WORLD_SIZE" in environ
        or not steps["STEP_NUM_TASKS"].isdigit()
        or int(steps["STEP_NUM_TASKS"]) < 2
    ):
        return dict(environ)
    port = FIRST_PORT + int(steps["JOB_ID"]) % NUM_PORTS
    local_rank = "0" if has_single_visible_device(environ) else steps["LOCALID"]
    joined = {
        "RANK": steps["PROCID"],
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": steps["STEP_NUM_TASKS"],
    }
    meeting = {"MASTER_ADDR": get_first_host(steps["STEP_NODELIST"]), "MASTER_PORT": str(port)}
    return {**meeting, **environ, **joined}


def is_in_distributed_job(environ: Mapping[str, str]) -> bool:
    """Return whether srun or torchrun started this process."""
    return "SLURM_STEP_NUM_TASKS" in environ or "WORLD_SIZE" in environ


def has_single_visible_device(environ: Mapping[str, str]) -> bool:
    """Return whether srun shows this task only its own accelerator on this machine.

    The job has several accelerators there.
    """
    shown = {environ[name] for name in TASK_DEVICE_VARIABLES if name in environ}
    return (
        any("," not in of_task and of_task.strip() not in ("", "-1") for of_task in shown)
        and environ.get("SLURM_GPUS_ON_NODE") != "1"
    )


def get_first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: `node[03-07,12],login` begins with node03."""
    found = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")


def get_rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks.

    These are 0 and 1 unless torchrun or srun started it.
    """
    rank, count = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
    return (int(rank), int(count)) if rank.isdigit() and count.isdigit() else (0, 1)


def should_use_color(is_terminal: bool) -> bool:
    """Return whether to use color: only on a terminal, not with NO_COLOR or a dumb terminal."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
