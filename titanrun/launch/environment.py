"""The environment as the description wing sees it: the only module of this wing that reads os.environ."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from titanrun.launch.machine import usable_cores
from titanrun.recipe.notice import NOTIFY

LOG_FORMAT = "TITANRUN_LOG_FORMAT"
TRUST = "TITANRUN_TRUST_REMOTE_CODE"
# where ranks of one Slurm job meet, apart from those of another on the same machine
FIRST_PORT = 20000
PORTS = 10000
# what Slurm sets for each task where accelerators are bound to tasks (--gpus-per-task, --gpu-bind)
ONE_OF_MANY = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def environment() -> Mapping[str, str]:
    """The environment variables that recipes may name in `${env:NAME}`."""
    return dict(os.environ)


def leave_out_pydantic_plugins() -> None:
    """Keep pydantic from importing what other packages register with it: foreign code in `validate`, and a search of all packages."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def quieten_workers() -> None:
    """Let the workers that this process starts tell the console of warnings and errors only."""
    os.environ["TITANRUN_QUIET"] = "1"


def log_as(form: str) -> None:
    """Let this process and those that it starts write their console in a form: text, or json."""
    os.environ[LOG_FORMAT] = form


def logs_json() -> bool:
    """Whether each line on the console is a JSON object."""
    return os.environ.get(LOG_FORMAT) == "json"


def notify_by(command: str) -> None:
    """Let the run that this process starts tell of its end by a command."""
    os.environ[NOTIFY] = command


def trust_remote_code(trusted: bool) -> None:
    """Let this process and those that it starts run code which comes with weights, or not, whatever the environment says."""
    os.environ.pop(TRUST, None)
    if trusted:
        os.environ[TRUST] = "1"


def environment_until(step: int) -> dict[str, str]:
    """The environment of a run that is to stop after a step, with the schedule of its whole length."""
    return {**os.environ, "TITANRUN_STOP_AFTER": str(step)}


def threads_environment(count: int) -> dict[str, str]:
    """The environment of one of `count` workers as far as it decides how many threads compute."""
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // count)), **os.environ}


def worker_environment(rank: int, count: int, *, port: int, failure_file: Path) -> dict[str, str]:
    """What one of `count` workers on this machine finds in its environment: what torchrun would set, and where to tell of a failure."""
    defaults = {}
    if sys.platform == "linux":
        # gloo would look the machine's name up, which fails on many laptops
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    places = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_PORT": port,
    }
    told = {"MASTER_ADDR": "127.0.0.1", "TITANRUN_FAILURE_FILE": str(failure_file)}
    return {
        **defaults,
        **threads_environment(count),
        **{name: str(number) for name, number in places.items()},
        **told,
    }


def node_environment(failures: Path, count: int, *, is_loopback: bool) -> dict[str, str]:
    """What the workers of one of several machines find in their environment, and torch.distributed.run adds to."""
    # torch's C++ side would print its stacks where another machine has left
    defaults = {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // count)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if is_loopback and sys.platform == "linux":
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    return {**defaults, **os.environ, "TITANRUN_FAILURE_FOLDER": str(failures)}


def joined_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment with what torchrun sets, also where srun started the ranks.

    A batch script and an allocation have a size too; only what srun starts has a step with several tasks.
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
    port = FIRST_PORT + int(steps["JOB_ID"]) % PORTS
    local_rank = "0" if sees_only_its_own(environ) else steps["LOCALID"]
    joined = {
        "RANK": steps["PROCID"],
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": steps["STEP_NUM_TASKS"],
    }
    meeting = {"MASTER_ADDR": first_host(steps["STEP_NODELIST"]), "MASTER_PORT": str(port)}
    return {**meeting, **environ, **joined}


def is_in_job(environ: Mapping[str, str]) -> bool:
    """Whether srun, or torchrun, started this process."""
    return "SLURM_STEP_NUM_TASKS" in environ or "WORLD_SIZE" in environ


def sees_only_its_own(environ: Mapping[str, str]) -> bool:
    """Whether srun shows this task one of the several accelerators that the job has on this machine: the task's own."""
    shown = {environ[name] for name in ONE_OF_MANY if name in environ}
    return (
        any("," not in of_task and of_task.strip() not in ("", "-1") for of_task in shown)
        and environ.get("SLURM_GPUS_ON_NODE") != "1"
    )


def first_host(nodes: str) -> str:
    """The first of the hosts in a list as Slurm writes it: `node[03-07,12],login` begins with node03."""
    found = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    assert found is not None
    return found[1] + (found[2] or "")


def ranks_around(environ: Mapping[str, str]) -> tuple[int, int]:
    """This process's rank, and how many ranks torchrun or srun started; 0 and 1 where neither did."""
    rank, count = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
    return (int(rank), int(count)) if rank.isdigit() and count.isdigit() else (0, 1)


def colour_wanted(stream_is_terminal: bool) -> bool:
    """Colour on a terminal only, never with NO_COLOR or on a dumb terminal."""
    return (
        stream_is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
