"""Trains on several machines: on each a launcher, whose workers torch.distributed.run brings together with those of the others.

The workers run the same command, and find out from their environment which ranks they are, as under torchrun.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from titanrun.config.problems import fail
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.environment import node_environment
from titanrun.launch.local import run_again
from titanrun.launch.saying import say
from titanrun.launch.workers import (
    HELD_BACK,
    SHELL_SIGNAL_BASE,
    WATCHED,
    Watch,
    Worker,
    do_nothing,
    end_with_parent,
)
from titanrun.recipe.run_dir import read_json

AGENT = "titanrun.worker.agent"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class Agent(Worker):
    """The process that meets those of the other machines, and whose children the workers are."""

    def send(self, number: signal.Signals) -> None:
        """To the workers, which know what to do with it; to the agent where there are none yet, or nothing shall be left."""
        children = children_of(self.process.pid)
        for pid in children:
            os.kill(pid, number)
        if not children or number == signal.SIGKILL:
            self.process.send_signal(number)


def start_with_others(
    config: LocalLaunchConfig, arguments: Sequence[str], *, processes: int, run_dir: Path | None
) -> int:
    """Trains what `titanrun train` with these arguments describes, with so many workers on this machine. Returns the exit code."""
    if config.max_restarts and run_dir is None:
        message = "machines that start again need a run directory that all of them know"
        raise fail(
            "conflict",
            message,
            path=("launch", "max_restarts"),
            help="set dump_folder to a folder that all machines see",
        )
    sys.stdout.flush()
    sys.stderr.flush()
    return run_again(
        lambda: run_node(config, arguments, processes), run_dir or Path(), config.max_restarts
    )


def run_node(config: LocalLaunchConfig, arguments: Sequence[str], processes: int) -> int:
    """Runs the workers of this machine to their end. Returns the exit code of the first that failed, else 0."""
    signal.pthread_sigmask(signal.SIG_SETMASK, HELD_BACK)
    # a signal that is ignored by default would not wait on every system
    signal.signal(signal.SIGCHLD, do_nothing)
    with TemporaryDirectory(prefix="titanrun-") as folder:
        command = [
            sys.executable,
            "-m",
            AGENT,
            *meeting(config, folder, processes),
            "--module",
            "titanrun",
            "train",
            *arguments,
        ]
        process = subprocess.Popen(
            command,
            env=node_environment(Path(folder), processes, is_loopback=host_of(config) in LOOPBACK),
            stdin=subprocess.DEVNULL,
            # a group of its own: Ctrl-C reaches this process alone, which passes it on once
            process_group=0,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        watch = Watch([Agent(0, process, Path(folder))])
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
            watch.until_the_end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watch.send(signal.SIGKILL)
        return exit_code_of_node(Path(folder), process.returncode)


def meeting(config: LocalLaunchConfig, folder: str, processes: int) -> list[str]:
    """What torch.distributed.run is told; restarts are done here, where it is known which failures are worth one."""
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
    address = ["--local-addr", "127.0.0.1"] if host_of(config) in LOOPBACK else []
    return [
        *(
            "--nnodes",
            str(config.nnodes),
            "--nproc-per-node",
            str(processes),
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


def host_of(config: LocalLaunchConfig) -> str:
    """The host at which all meet."""
    return str(config.rdzv_endpoint).rpartition(":")[0]


def exit_code_of_node(folder: Path, code: int) -> int:
    """The exit code of this machine's part; what its first failing rank says is said once, for all of them."""
    if code == 0:
        return 0
    told = [read_json(path) for path in folder.glob("rank-*.json")]
    if told:
        first = min(told, key=lambda failure: (failure["is_of_another"], failure["time"]))
        say(first["text"], level="error")
        return int(first["exit_code"])
    return SHELL_SIGNAL_BASE - code if code < 0 else code


def children_of(pid: int) -> list[int]:
    """The processes that a process started and that are left; none where the system does not say."""
    found = [
        path.read_text(encoding="ascii").split()
        for path in Path(f"/proc/{pid}/task").glob("*/children")
    ]
    return [int(child) for children in found for child in children]
