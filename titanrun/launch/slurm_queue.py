"""What is asked of Slurm itself: sbatch takes a job, squeue and scontrol tell what became of it."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.launch.slurm import FOLDER, SCRIPT
from titanrun.recipe.run_files import read_json, write_json

JOB = "job.json"
# the controller answers everybody on a cluster
LOOK_SECONDS = 5.0
LOG_SECONDS = 0.5
WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
ALIVE = (
    *WAITING,
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job: PENDING, RUNNING, COMPLETED ..., why it waits, and its exit code; GONE where Slurm has forgotten it."""

    state: str
    reason: str = ""
    exit_code: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it will not run any more."""
        return self.state not in ALIVE

    def __str__(self) -> str:
        return (
            f"{self.state.lower()} ({self.reason})"
            if self.state in WAITING and self.reason not in ("", "None")
            else self.state.lower()
        )


def program(name: str) -> str:
    """The path of one of Slurm's programs. Raises ProblemsFound where it is missing."""
    found = shutil.which(name)
    if found is None:
        help = "submit from a machine of the cluster; --dry-run shows what would be submitted"
        raise fail(
            "usage",
            f"launch: slurm needs {name}, which is not on this machine",
            path=("launch",),
            help=help,
        )
    return found


def submit(script: Path) -> int:
    """Hands a script to sbatch. Returns the job's number."""
    done = subprocess.run(
        [program("sbatch"), "--parsable", str(script)], capture_output=True, text=True, check=False
    )
    number = done.stdout.strip().partition(";")[0]
    if done.returncode != 0 or not number.isdigit():
        said = " ".join((done.stderr or done.stdout).split()).removeprefix("sbatch: error: ")
        raise fail(
            "usage",
            f"sbatch refuses the job: {said or 'it says nothing'}",
            path=("launch",),
            help=f"the script is {script}",
        )
    write_json(script.parent / JOB, {"job": int(number)})
    return int(number)


def job_state(job: int) -> JobState:
    """What Slurm says of a job; of an array, of its tasks together: running while one of them is."""
    done = subprocess.run(
        [program("scontrol"), "show", "job", "--oneliner", str(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    tasks = [
        dict(re.findall(r"(\w+)=(\S*)", line))
        for line in done.stdout.splitlines()
        if "JobState=" in line
    ]
    if not tasks:
        if "Invalid job id" in done.stderr:
            return JobState("GONE")
        raise fail(
            "usage", f"scontrol does not answer: {' '.join(done.stderr.split())}", path=("launch",)
        )
    found = [
        JobState(
            task["JobState"],
            task.get("Reason", ""),
            int(task.get("ExitCode", "0").partition(":")[0]),
        )
        for task in tasks
    ]
    return next(
        (state for state in found if not state.is_over),
        max(found, key=lambda state: state.exit_code),
    )


def refuse_queued(place: Path) -> None:
    """Raises where a run's or a sweep's folder has a job already that waits or runs."""
    job = read_json(place / FOLDER / JOB).get("job")
    if not isinstance(job, int):
        return
    state = job_state(job)
    if not state.is_over:
        raise fail(
            "conflict",
            f"job {job} trains '{place}' already: {state}",
            help=f"wait for it, or end it: scancel {job}",
        )


def follow(job: int, log: Path, tell: Callable[[str], None]) -> JobState:
    """Passes on what the job says, and what becomes of it, until it is over. Returns its last state."""
    said, looked, shown, state = 0, 0.0, "", JobState("PENDING")
    while True:
        if time.monotonic() - looked >= LOOK_SECONDS:
            state, looked = job_state(job), time.monotonic()
            if str(state) != shown:
                shown = str(state)
                tell(f"job {job}: {shown}")
        said = passed_on(log, said)
        if state.is_over:
            return state
        time.sleep(LOG_SECONDS)


def passed_on(log: Path, said: int) -> int:
    """Writes what a file has more than `said` bytes of to stderr. Returns how many it has."""
    if not log.exists():
        return said
    with log.open("rb") as file:
        file.seek(said)
        more = file.read()
    sys.stderr.write(more.decode("utf-8", "replace"))
    sys.stderr.flush()
    return said + len(more)


def write_script(text: str, place: Path) -> Path:
    """The script as a file in a run's or a sweep's folder."""
    folder = place / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SCRIPT
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path
