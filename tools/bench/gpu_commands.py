"""Commands that must succeed on a machine before its speed is of interest, each in limited time."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = "import sys, torch; print(sys.version.split()[0], torch.__version__, torch.version.cuda)"
TITANRUN = (sys.executable, "-m", "titanrun")
TOY = ("device=cpu", "training.local_batch_size=1", "training.seq_len=64")


def list_commands(folder: Path, *, toy: bool) -> dict[str, tuple[float, list[str]]]:
    """Return seconds and arguments of each command."""
    run = str(folder / "run")
    settings = [f"dump_folder={run}", "checkpoint.enable=true", *(TOY if toy else ())]
    tests = [sys.executable, str(ROOT / "tools" / "run_gpu_tests.py"), str(folder / "tests.xml")]
    return {
        "versions": (20, [sys.executable, "-c", VERSIONS]),
        "doctor": (40, [*TITANRUN, "doctor"]),
        # a machine without a GPU has none to test
        **({} if toy else {"tests": (150, tests)}),
        "train": (60, [*TITANRUN, "train", "llama3_debug", *settings, "training.steps=10"]),
        "resume": (60, [*TITANRUN, "resume", run, "training.steps=20"]),
    }


def run_commands(folder: Path, *, end: float, toy: bool) -> Iterator[tuple[str, str]]:
    """Run the commands that fit into the time left; print and yield what became of each."""
    for name, (seconds, command) in list_commands(folder.absolute(), toy=toy).items():
        left = end - time.monotonic()
        said = (
            run_command(command, folder / f"{name}.log", min(seconds, left))
            if left > 0
            else "FAILED: no time left"
        )
        print(f"{name:<28} {said}", flush=True)
        yield name, said


def run_command(command: list[str], log: Path, seconds: float) -> str:
    """Run a command, and return what became of it."""
    started = time.monotonic()
    code = run_limited(command, log, seconds)
    if code is None:
        return f"FAILED: more than {seconds:.0f} s, see {log}"
    if code:
        return f"FAILED: exit code {code}, see {log}"
    return f"ok in {time.monotonic() - started:.0f} s"


def run_limited(command: list[str], log: Path, seconds: float) -> int | None:
    """Run a command in a process group of its own and return its exit code.

    None: its time was over. The group is killed then, and if this process has to end before it.
    """
    # a folder with wheels may be among the paths
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("w") as lines:
        process = subprocess.Popen(
            command, stdout=lines, stderr=lines, start_new_session=True, env=environment
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
