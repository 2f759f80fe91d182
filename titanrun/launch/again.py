"""A run that is trained once more, in a process of its own, while this one waits for it."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from titanrun.launch.environment import environment_until
from titanrun.launch.workers import HELD_BACK, SHELL_SIGNAL_BASE, end_with_parent


def train_until(step: int, arguments: Sequence[str], *, folder: Path) -> int:
    """`titanrun train` with these arguments in `folder`, stopped after a step. Returns its exit code; signals to this process reach it."""
    process: subprocess.Popen[bytes] | None = None
    waiting: list[signal.Signals] = []

    def pass_on(number: int, frame: object) -> None:
        if process is None:
            waiting.append(signal.Signals(number))
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in HELD_BACK}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "titanrun", "train", *arguments],
            cwd=folder,
            env=environment_until(step),
            stdin=subprocess.DEVNULL,
            # a group of its own: Ctrl-C reaches this process alone, which passes it on once
            process_group=0,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
        for number in waiting:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return SHELL_SIGNAL_BASE - code if code < 0 else code
