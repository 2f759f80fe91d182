"""Training on several machines: one launcher each, connected by torch.distributed.run.

The workers run the same command and read their ranks from the environment, as under torchrun.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.exit_codes import SHELL_SIGNAL_BASE
from titanrun.config.problems import problem_error
from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.launch_env import build_node_environment
from titanrun.launch.launcher_log import log_line
from titanrun.launch.local_launcher import run_with_restarts
from titanrun.launch.worker_processes import (
    WorkerMonitor,
    WorkerProcess,
    do_nothing,
    list_monitored_signals,
    set_parent_death_signal,
)
from titanrun.recipe.rundir.run_files import read_json_or_empty

AGENT = "titanrun.worker.elastic_agent"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class ElasticAgent(WorkerProcess):
    """Process that connects to the agents of the other machines and starts the workers."""

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the workers, which handle it.

        It goes to the agent itself if there are no workers yet, or if all processes must be killed.
        """
        children = get_child_pids(self.process.pid)
        for pid in children:
            os.kill(pid, number)
        if not children or number == signal.SIGKILL:
            self.process.send_signal(number)


def start_multi_node(
    config: LocalLaunchConfig, arguments: Sequence[str], *, num_processes: int, run_dir: Path | None
) -> int:
    """Train the run of `titanrun train` with these arguments on `num_processes` workers here.

    Return the exit code.
    """
    if config.max_restarts and run_dir is None:
        message = "max_restarts with several machines needs a run directory that all of them share"
        raise problem_error(
            "conflict",
            message,
            path=("launch", "max_restarts"),
            hint="set dump_folder to a folder on shared storage",
        )
    drain_console()
    return run_with_restarts(
        lambda: run_node(config, arguments, num_processes), run_dir or Path(), config.max_restarts
    )


def run_node(config: LocalLaunchConfig, arguments: Sequence[str], num_processes: int) -> int:
    """Run the workers of this machine to their end.

    Return the exit code of the first that failed, else 0.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, list_run_signals())
    # a signal that is ignored by default would not stay pending on every system
    signal.signal(signal.SIGCHLD, do_nothing)
    with TemporaryDirectory(prefix="titanrun-") as folder:
        command = [
            sys.executable,
            "-m",
            AGENT,
            *build_torchrun_arguments(config, folder, num_processes),
            "--module",
            "titanrun",
            "train",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            env=build_node_environment(
                Path(folder), num_processes, is_loopback=get_rendezvous_host(config) in LOOPBACK
            ),
            stdin=subprocess.DEVNULL,
            # separate process group: Ctrl-C reaches only this process, which forwards it once
            process_group=0,
            preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
        )
        watch = WorkerMonitor([ElasticAgent(0, process, Path(folder))])
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, list_monitored_signals())
            watch.wait_all()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watch.send_signal(signal.SIGKILL)
        return get_node_exit_code(Path(folder), process.returncode)


def build_torchrun_arguments(
    config: LocalLaunchConfig, folder: str, num_processes: int
) -> list[str]:
    """Build the arguments of torch.distributed.run.

    Restarts are handled by the launcher, which knows which failures to retry.
    """
    seconds = config.rdzv_timeout_seconds
    numbered = (
        ["--rdzv-backend", "c10d"]
        if config.node_rank is None
        else ["--rdzv-backend", "static", "--node-rank", str(config.node_rank)]
    )
    timeouts = (
        f"join_timeout={seconds},read_timeout={seconds}"
        if config.node_rank is None
        else f"timeout={seconds}"
    )
    address = ["--local-addr", "127.0.0.1"] if get_rendezvous_host(config) in LOOPBACK else []
    return [
        *(
            "--nnodes",
            str(config.nnodes),
            "--nproc-per-node",
            str(num_processes),
            "--max-restarts",
            "0",
            "--log-dir",
            folder,
        ),
        *(
            "--rdzv-endpoint",
            str(config.rdzv_endpoint),
            "--rdzv-id",
            config.rdzv_id,
            "--rdzv-conf",
            timeouts,
            *numbered,
            *address,
        ),
    ]


def get_rendezvous_host(config: LocalLaunchConfig) -> str:
    """Return the host of the rendezvous."""
    return str(config.rdzv_endpoint).rpartition(":")[0]


def get_node_exit_code(folder: Path, code: int) -> int:
    """Return the exit code of this machine; print the report of its first failing rank once."""
    if code == 0:
        return 0
    told = [read_json_or_empty(path) for path in folder.glob("rank-*.json")]
    if told:
        first = min(told, key=lambda failure: (failure["is_of_another"], failure["time"]))
        log_line(first["text"], level="error")
        return int(first["exit_code"])
    return SHELL_SIGNAL_BASE - code if code < 0 else code


def get_child_pids(pid: int) -> list[int]:
    """Return the live child processes of a process; empty if the system does not report them."""
    found = [
        path.read_text(encoding="ascii").split()
        for path in Path(f"/proc/{pid}/task").glob("*/children")
    ]
    return [int(child) for children in found for child in children]
