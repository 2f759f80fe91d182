"""Runs that wait after a step, so that what a test does to them comes in time on any machine."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HOLD = Path(__file__).parent / "hold"
ROOT = Path(__file__).parents[2]
MAX_SECONDS = 300


def build_hold(step: int) -> dict[str, str]:
    """The variables of runs that wait after a step until `release`.

    A run that was released does not wait when it is started again.
    """
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(HOLD), str(ROOT), *filter(None, inherited)]
    return {
        "HOLD_STEP": str(step),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def without_hold(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment for runs that do not wait."""
    return {name: value for name, value in environment.items() if name != "HOLD_STEP"}


def wait_for_hold(
    folder: Path,
    process: "subprocess.Popen[str] | None" = None,
    groups: Sequence[int] = (0,),
    word: str = "held",
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Wait until a run, or all of these groups of it, waits. Fail if its command ends before.

    With the word `asked`, wait until it is asked to stop.
    """
    deadline = time.monotonic() + MAX_SECONDS
    while not all((folder / f"{word}-{group}").exists() for group in groups):
        watch()
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended: {process.communicate()}")
        assert time.monotonic() < deadline, f"never {word}: {folder}"
        time.sleep(0.05)


def release(folder: Path) -> None:
    """Let a run go on."""
    (folder / "released").touch()
