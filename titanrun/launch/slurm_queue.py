"""Slurm commands: sbatch submits a job, squeue and scontrol report its state."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.launch.slurm_launcher import FOLDER, SCRIPT
from titanrun.recipe.rundir.run_files import read_json_or_empty, write_indented_json

JOB_FILE = "job.json"
# poll rarely: the controller serves all users of the cluster
POLL_SECONDS = 5.0
LOG_POLL_SECONDS = 0.5
PENDING_JOB_STATES = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
)
UNFINISHED_JOB_STATES = (
    *PENDING_JOB_STATES,
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
    """State of a job: PENDING, RUNNING, COMPLETED ..., its wait reason and its exit code.

    The state is GONE if Slurm does not know the job any more.
    """

    state: str
    reason: str = ""
    exit_code: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the job will not run any more."""
        return self.state not in UNFINISHED_JOB_STATES

    def __str__(self) -> str:
        return (
            f"{self.state.lower()} ({self.reason})"
            if self.state in PENDING_JOB_STATES and self.reason not in ("", "None")
            else self.state.lower()
        )


def get_slurm_program(name: str) -> str:
    """Return the path of a Slurm program. Raise ProblemsFound if it is missing."""
    found = shutil.which(name)
    if found is None:
        hint = "submit from a machine of the cluster; --dry-run shows what would be submitted"
        raise problem_error(
            "usage",
            f"launch: slurm needs {name}, which is not installed on this machine",
            path=("launch",),
            hint=hint,
        )
    return found


def submit_job(script: Path, *, after: int | None = None) -> int:
    """Submit a script with sbatch and return the job number.

    The job waits until the job `after`, or every task of that array, has ended in any way.
    """
    waits = () if after is None else (f"--dependency=afterany:{after}",)
    done = subprocess.run(
        [get_slurm_program("sbatch"), "--parsable", *waits, str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    number = done.stdout.strip().partition(";")[0]
    if done.returncode != 0 or not number.isdigit():
        said = " ".join((done.stderr or done.stdout).split()).removeprefix("sbatch: error: ")
        raise problem_error(
            "usage",
            f"sbatch rejected the job: {said or 'no message'}",
            path=("launch",),
            hint=f"the script is {script}",
        )
    write_indented_json(script.parent / JOB_FILE, {"job": int(number)})
    return int(number)


def cancel_job(job: int) -> None:
    """Cancel a job, or all tasks of an array."""
    subprocess.run([get_slurm_program("scancel"), str(job)], capture_output=True, check=False)


def signal_job(job: int, name: str) -> None:
    """Send a signal such as TERM to the tasks of a job. Raise ProblemsFound if it is rejected."""
    run_slurm_program("scancel", f"--signal={name}", str(job))


def forbid_requeue(job: int) -> None:
    """Let a job end that its script would requeue. Raise ProblemsFound if it is rejected."""
    run_slurm_program("scontrol", "update", f"JobId={job}", "Requeue=0")


def run_slurm_program(name: str, *arguments: str) -> None:
    """Run a Slurm program that changes a job. Raise ProblemsFound if it fails."""
    words = [get_slurm_program(name), *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or "no message"
        raise problem_error("usage", f"{name} failed: {said}", path=("launch",))


def find_training_job(run: Path) -> int | None:
    """Return the job that `titanrun launch` submitted for a run and that is running, or None."""
    job = read_json_or_empty(run / FOLDER / JOB_FILE).get("job")
    if not isinstance(job, int) or shutil.which("scontrol") is None:
        return None
    return job if query_job_state(job).state == "RUNNING" else None


def query_job_state(job: int) -> JobState:
    """Query the state of a job.

    An array has one state for all its tasks: running while one of them is.
    """
    done = subprocess.run(
        [get_slurm_program("scontrol"), "show", "job", "--oneliner", str(job)],
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
        raise problem_error(
            "usage", f"scontrol failed: {' '.join(done.stderr.split())}", path=("launch",)
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


def check_not_queued(parent_folder: Path, *, action: str = "training") -> None:
    """Raise ProblemsFound if the folder of a run or sweep has a waiting or running job.

    `action` is what the job does with the folder, for the message.
    """
    job = read_json_or_empty(parent_folder / FOLDER / JOB_FILE).get("job")
    if not isinstance(job, int):
        return
    state = query_job_state(job)
    if not state.is_over:
        raise problem_error(
            "conflict",
            f"job {job} is already {action} '{parent_folder}': {state}",
            hint=f"wait for it, or cancel it: scancel {job}",
        )


def follow_job(job: int, log: Path, print_line: Callable[[str], None]) -> JobState:
    """Forward the output of a job and its state until it is over. Return its last state."""
    said, looked, shown, state = 0, 0.0, "", JobState("PENDING")
    while True:
        if time.monotonic() - looked >= POLL_SECONDS:
            state, looked = query_job_state(job), time.monotonic()
            if str(state) != shown:
                shown = str(state)
                print_line(f"job {job}: {shown}")
        said = forward_log(log, said)
        if state.is_over:
            return state
        time.sleep(LOG_POLL_SECONDS)


def forward_log(log: Path, offset: int) -> int:
    """Write the bytes of a file after `offset` to stderr and return its new length."""
    if not log.exists():
        return offset
    with log.open("rb") as file:
        file.seek(offset)
        more = file.read()
    sys.stderr.write(more.decode("utf-8", "replace"))
    sys.stderr.flush()
    return offset + len(more)


def write_job_script(text: str, parent_folder: Path, *, name: str = SCRIPT) -> Path:
    """Write the script into the folder of a run or a sweep and return its path."""
    folder = parent_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path
