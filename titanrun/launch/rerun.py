"""Rerun of a training run in a separate process while this one waits."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.exit_codes import SHELL_SIGNAL_BASE
from titanrun.distributed.spec.run_signals import handle_signals, list_run_signals
from titanrun.launch.launch_env import build_stop_after_environment
from titanrun.launch.worker_processes import set_parent_death_signal


def rerun_until(step: int, arguments: Sequence[str], *, folder: Path) -> int:
    """Run `titanrun train` with these arguments in `folder`, stopped after a step.

    Return its exit code. Signals to this process are forwarded to it.
    """
    process: subprocess.Popen[bytes] | None = None
    waiting: list[signal.Signals] = []

    def forward_signal(number: int, frame: object) -> None:
        if process is None:
            waiting.append(signal.Signals(number))
        else:
            process.send_signal(number)

    with handle_signals(list_run_signals(), forward_signal):
        drain_console()
        process = subprocess.Popen(
            [sys.executable, "-m", "titanrun", "train", *arguments],
            cwd=folder,
            env=build_stop_after_environment(step),
            stdin=subprocess.DEVNULL,
            # separate process group: Ctrl-C reaches only this process, which forwards it once
            process_group=0,
            preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
        )
        for number in waiting:
            process.send_signal(number)
        code = process.wait()
    return SHELL_SIGNAL_BASE - code if code < 0 else code
