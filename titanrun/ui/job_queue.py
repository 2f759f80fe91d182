"""The queue of one workspace: commands that wait for devices, run, and have ended.

It is one file, so that it survives the server: commands that run go on without it, and those that
wait begin when a server is there again.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from threading import Event, RLock

from titanrun.launch.detached_command import (
    is_command_running,
    read_exit_code,
    start_detached_command,
)
from titanrun.launch.host_info import count_accelerators
from titanrun.recipe.rundir.run_files import read_json_or_empty, write_text_atomically
from titanrun.ui.refusal import Refusal

QUEUE_FILE = "queue.json"
POLL_SECONDS = 0.3
IDLE_POLL_SECONDS = 1.0
MAX_SHORT = 2
MAX_SLOTS = 64
MAX_WAITING = 200
MAX_ENDED = 60
MAX_ENDED_SHORT = 200
DEVICE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(slots=True)
class Job:
    """One command.

    Args:
        id: Its name.
        command: What the page asked for.
        words: Arguments of `titanrun`.
        target: The word that names a recipe, sweep or run.
        overrides: Changes of the recipe.
        state_digest: Digest of what it was shown to do.
        lane: It waits for devices in `queue`, starts at once in `now`; `short` ones only read.
        slots: How many devices it takes in the queue.
        state: `queued`, `running`, `done`, `failed` or `cancelled`.
        devices: Those it was given.
        reason: Why it was not started, or is `cancelled`.
        run: Folder of its run below that of all runs, once it is known.
    """

    id: str
    command: str
    words: tuple[str, ...]
    target: str
    overrides: tuple[str, ...]
    state_digest: str
    lane: str
    slots: int = 1
    state: str = "queued"
    devices: list[str] = field(default_factory=list)
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    created: float = 0.0
    started: float | None = None
    ended: float | None = None
    run: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state not in ("queued", "running")


@dataclass(slots=True)
class JobQueue:
    """Jobs of a workspace, in the order in which they wait.

    Args:
        folder: Holds the file of the queue, and a folder for each job.
        cwd: Where commands run.
        environment: Their environment.
        devices: Accelerators of this machine; without any, `num_slots` commands run at a time.
        find_obstacle: Says why a command that waited must not start any more, or None.
        find_run: Finds the run that a command trains in what it has printed.
    """

    folder: Path
    cwd: Path
    environment: Mapping[str, str]
    devices: Sequence[str]
    find_obstacle: Callable[[Job], str | None]
    find_run: Callable[[Job], str | None]
    num_slots: int = 1
    jobs: list[Job] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        """Read what an earlier server has left."""
        data = read_json_or_empty(self.folder / QUEUE_FILE)
        known = {one.name for one in fields(Job)}
        for record in data.get("jobs") or []:
            kept = {key: value for key, value in record.items() if key in known}
            kept |= {key: tuple(kept[key]) for key in ("words", "overrides")}
            self.jobs.append(Job(**kept))
        if self.devices:
            self.num_slots = len(self.devices)
        else:
            self.num_slots = int(data.get("num_slots") or 1)

    def save(self) -> None:
        """Write the file of the queue."""
        self.forget_old()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = {"num_slots": self.num_slots, "jobs": [asdict(job) for job in self.jobs]}
        write_text_atomically(self.folder / QUEUE_FILE, json.dumps(data, ensure_ascii=False))

    def forget_old(self) -> None:
        """Remove the oldest ended jobs with their output."""
        for is_short, most in ((True, MAX_ENDED_SHORT), (False, MAX_ENDED)):
            ended = [
                job for job in self.jobs if job.has_ended and (job.lane == "short") is is_short
            ]
            ended.sort(key=lambda job: job.ended or 0.0)
            for job in ended[: max(0, len(ended) - most)]:
                self.jobs.remove(job)
                shutil.rmtree(self.get_folder(job), ignore_errors=True)

    def get_folder(self, job: Job) -> Path:
        """Return the folder with the output of a job."""
        return self.folder / job.id

    def find(self, job_id: str) -> Job:
        """Return a job. Raise Refusal if there is none of this id."""
        found = next((job for job in self.jobs if job.id == job_id), None)
        if found is None:
            raise Refusal(404, "job", "there is no such job")
        return found

    def add(self, job: Job) -> Job:
        """Let a job wait, and start it if its turn has come."""
        with self.lock:
            waiting = sum(one.state == "queued" for one in self.jobs)
            if waiting >= MAX_WAITING:
                raise Refusal(429, "busy", f"{waiting} commands wait already")
            if job.lane == "queue" and job.slots > self.num_slots:
                raise Refusal(400, "slots", f"there are only {self.num_slots} slots")
            self.jobs.append(job)
            self.advance()
            self.save()
            return job

    def advance(self) -> None:
        """Note which commands have ended, and start those whose turn has come."""
        with self.lock:
            before = [(job.state, job.run) for job in self.jobs]
            for job in self.jobs:
                if job.state == "running":
                    self.note_progress(job)
            for job in self.list_startable():
                self.start(job)
            if before != [(job.state, job.run) for job in self.jobs]:
                self.save()

    def note_progress(self, job: Job) -> None:
        """Note the run that a command trains, and its end."""
        folder = self.get_folder(job)
        is_running = is_command_running(folder)
        if job.run is None and job.lane != "short":
            job.run = self.find_run(job)
        if is_running:
            return
        process = self.processes.pop(job.id, None)
        if process is not None:
            process.wait()
        job.exit_code, job.ended = read_exit_code(folder), time.time()
        is_good = job.exit_code == 0 or (job.command == "plan" and job.exit_code == 1)
        job.state = "cancelled" if job.reason else "done" if is_good else "failed"

    def list_startable(self) -> list[Job]:
        """Return the jobs to start now: in order, none overtakes one that waits for more slots."""
        running = [job for job in self.jobs if job.state == "running"]
        free = self.num_slots - sum(job.slots for job in running if job.lane == "queue")
        free_short = MAX_SHORT - sum(job.lane == "short" for job in running)
        found, is_held_up = [], False
        for job in self.jobs:
            if job.state != "queued":
                continue
            if job.lane == "short" and free_short > 0:
                free_short -= 1
                found.append(job)
            elif job.lane == "now":
                found.append(job)
            elif job.lane == "queue":
                is_held_up = is_held_up or job.slots > free
                if not is_held_up:
                    free -= job.slots
                    found.append(job)
        return found

    def start(self, job: Job) -> None:
        """Start a command, unless it would do something else than what was shown."""
        obstacle = self.find_obstacle(job)
        if obstacle is not None:
            job.state, job.reason, job.ended = "cancelled", obstacle, time.time()
            return
        environment = dict(self.environment)
        if job.lane == "queue" and self.devices:
            taken = {name for one in self.jobs if one.state == "running" for name in one.devices}
            free = [name for name in self.devices if name not in taken]
            job.devices = free[: job.slots]
            environment[DEVICE_VARIABLE] = ",".join(job.devices)
        process = start_detached_command(
            job.words,
            cwd=self.cwd,
            folder=self.get_folder(job),
            environment=environment,
            splits_output=job.lane == "short",
        )
        self.processes[job.id] = process
        job.state, job.pid, job.started = "running", process.pid, time.time()

    def cancel(self, job_id: str) -> None:
        """Take a job out of the queue, or ask its command to end."""
        with self.lock:
            job = self.find(job_id)
            if job.state == "queued":
                job.state, job.reason, job.ended = "cancelled", "by you", time.time()
            elif job.state == "running" and job.pid is not None:
                job.reason = "by you"
                # a process group keeps its number from being used again while any of it is left
                if is_command_running(self.get_folder(job)):
                    with suppress(ProcessLookupError):
                        os.kill(job.pid, signal.SIGTERM)
            self.save()

    def reorder(self, ids: Sequence[str]) -> None:
        """Let waiting jobs wait in another order. Raise Refusal if it names others than these."""
        with self.lock:
            waiting = [job for job in self.jobs if job.state == "queued" and job.lane == "queue"]
            if sorted(ids) != sorted(job.id for job in waiting):
                raise Refusal(409, "queue", "the queue has changed: look at it again")
            order = {name: place for place, name in enumerate(ids)}
            waiting.sort(key=lambda job: order[job.id])
            self.jobs = [job for job in self.jobs if job not in waiting] + waiting
            self.save()

    def set_slots(self, count: int) -> None:
        """Set how many commands run at a time on a machine without accelerators."""
        if self.devices:
            raise Refusal(400, "slots", "each accelerator of this machine is one slot")
        if not 1 <= count <= MAX_SLOTS:
            raise Refusal(400, "slots", f"slots are from 1 to {MAX_SLOTS}")
        with self.lock:
            self.num_slots = count
            self.save()

    def keep_advancing(self, end: Event) -> None:
        """Advance until the server ends."""
        while not end.wait(self.get_poll_seconds()):
            self.advance()

    def get_poll_seconds(self) -> float:
        """Return the time to the next look, longer while no job waits or runs."""
        is_idle = all(job.has_ended for job in list(self.jobs))
        return IDLE_POLL_SECONDS if is_idle else POLL_SECONDS


def create_job_id() -> str:
    """Return a new name for a job."""
    return secrets.token_hex(8)


def list_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the accelerators that commands may use, as their variable has them."""
    count = count_accelerators(environment)
    shown = [name.strip() for name in environment.get(DEVICE_VARIABLE, "").split(",")]
    named = [name for name in shown if name not in ("", "-1")]
    return named[:count] or [str(number) for number in range(count)]
