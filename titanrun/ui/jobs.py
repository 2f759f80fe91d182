"""Commands that the page starts: shown first, and started only as they were shown."""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.cli.diff_config import field_diff_to_dict
from titanrun.cli.resume import build_length_overrides, build_resume_arguments
from titanrun.config.problems import ProblemsFound
from titanrun.config.redaction import redact_url_credentials
from titanrun.config.secrets import iter_secrets
from titanrun.config.tree import format_path
from titanrun.config.trust import NamedCode, is_trusted, remember_trust
from titanrun.launch.detached_command import OUTPUT
from titanrun.recipe.comparing.recipe_diff import DiffSide, diff_recipes, load_diff_side
from titanrun.recipe.consent.recipe_code import find_recipe_code
from titanrun.recipe.resolving.multi_stage import StageRequiredError
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED, RUNS
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.validate_points import validate_points
from titanrun.ui.chats import Chats
from titanrun.ui.commands import Command, CommandBuilder
from titanrun.ui.examination import MASK
from titanrun.ui.job_queue import Job, JobQueue, create_job_id
from titanrun.ui.job_results import read_output, read_result
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.workspace import Workspace

PREVIEW_SECONDS = 300.0
MAX_PREVIEWS = 300
MAX_CHANGES = 200
RUN_FOLDER = re.compile(
    r"(?:run directory|restarting in|resuming in): (.+?)(?: \(no checkpoint.*)?$", re.M
)
NOT_ALLOWED = "the recipe runs code that you have not allowed"
CHANGED = "the recipe has changed: look at the command again"


@dataclass(frozen=True, slots=True)
class Examined:
    """What a command would do: its runs, and the code that they name."""

    runs: tuple[Resolved, ...]
    codes: tuple[NamedCode, ...]

    def describe(self) -> dict[str, Any]:
        """Return what is to be known before it starts."""
        runs = self.runs
        names = {name for run in runs for names in run.variables.values() for name in names}
        warnings = [
            redact_url_credentials(problem.message) for run in runs for problem in run.warnings
        ]
        return {"env_names": sorted(names), "warnings": list(dict.fromkeys(warnings))}


@dataclass(frozen=True, slots=True)
class Preview:
    """A command as it was shown, with a digest of what it would do, and when."""

    command: Command
    state_digest: str
    time: float


@dataclass(slots=True)
class JobStarter:
    """Previews of one server, and the jobs that they become."""

    workspace: Workspace
    catalog: RunCatalog
    environment: Mapping[str, str]
    folder: Path
    devices: Sequence[str]
    read_alone: Callable[[Callable[[], Any]], Any]
    previews: dict[str, Preview] = field(default_factory=dict)
    queue: JobQueue = field(init=False)
    builder: CommandBuilder = field(init=False)
    chats: Chats = field(init=False)

    def __post_init__(self) -> None:
        """Find the jobs of an earlier server."""
        self.builder = CommandBuilder(self.workspace, self.catalog)
        self.chats = Chats(self.workspace.root, self.environment)
        self.queue = JobQueue(
            self.folder,
            self.workspace.root,
            self.environment,
            self.devices,
            self.find_obstacle,
            self.find_run,
        )

    def preview(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the command of a request, and all that it would run, without starting it.

        Raises:
            Refusal: The request is not one of a page.
            ProblemsFound: The recipe has problems.
        """
        command = self.builder.build(request)
        examined, more = self.read_alone(lambda: self.examine_for_preview(command))
        now = time.monotonic()
        digest, state = secrets.token_urlsafe(24), self.hash_state(command, examined)
        self.previews = {
            key: one for key, one in self.previews.items() if now - one.time < PREVIEW_SECONDS
        }
        if len(self.previews) >= MAX_PREVIEWS:
            raise Refusal(429, "busy", "too many previews")
        self.previews[digest] = Preview(command, state, now)
        return {
            "shell": command.shell,
            "cwd": str(self.workspace.root),
            "digest": digest,
            "programs": [
                {
                    "path": format_path(code.path),
                    "text": code.text,
                    "kind": code.kind,
                    "trusted": is_trusted(code, self.environment),
                }
                for code in examined.codes
            ],
            "known": self.find_known(command, state),
            **examined.describe(),
            **more,
        }

    def examine_for_preview(self, command: Command) -> tuple[Examined, dict[str, Any]]:
        """Return what a command would do, its run directory, and what is new in it."""
        examined = self.examine(command)
        if command.name not in ("train", "launch") or len(examined.runs) != 1:
            return examined, {}
        run = examined.runs[0]
        folder = run.recipe.dump_folder
        launch = run.run.launch
        submits = launch.name if launch.is_submitted else None
        place = {"folder": folder or f"a new folder in {RUNS}/", "submits": submits}
        return examined, {**place, **self.compare_to_last(run)}

    def compare_to_last(self, run: Resolved) -> dict[str, Any]:
        """Return the last run of the same name, and the settings in which this one differs."""
        named = [entry for entry, _ in self.catalog.load_pairs() if entry.name == run.run.name]
        last = max(named, key=lambda entry: entry.started or "", default=None)
        if last is None:
            return {}
        try:
            before = load_diff_side(last.run, [], self.environment)
        except ProblemsFound:
            return {}
        found = diff_recipes(before, DiffSide("preview", run), "effective")
        sides = (run.run, before.resolved.run)
        secret = {format_path(where) for side in sides for where, _ in iter_secrets(side)}
        changes = [field_diff_to_dict(item) for item in found[:MAX_CHANGES]]
        for change in changes:
            if change["path"] in secret:
                change |= {"a": MASK, "b": MASK}
        return {"last_run": self.catalog.to_id(last), "changes": changes}

    def find_known(self, command: Command, state: str) -> str | None:
        """Return the job that has answered the same command about the same recipe, or None."""
        same = [
            job.id
            for job in self.queue.jobs
            if job.lane == "short"
            and job.state != "cancelled"
            and (job.words, job.state_digest) == (command.words, state)
        ]
        return same[-1] if same else None

    def examine(self, command: Command) -> Examined:
        """Return what a command would do.

        Raises:
            ProblemsFound: The recipe has problems.
        """
        runs = tuple(self.resolve(command))
        codes = {
            code.digest: code
            for run in runs
            for code in find_recipe_code(run.run, self.workspace.root)
        }
        return Examined(runs, tuple(codes.values()))

    def resolve(self, command: Command) -> list[Resolved]:
        """Return the runs of a command, with its overrides."""
        file, changes = command.target, list(command.overrides)
        if command.name.startswith("sweep"):
            sweep = read_sweep(Path(file))
            if sweep.search is None:
                planned, _ = validate_points(sweep, changes, self.environment)
                return [one.resolved for one in planned]
            file, changes = sweep.recipe, [*sweep.config.overrides, *changes]
        elif command.name == "resume":
            file, *load = build_resume_arguments(Path(file))
            changes = [*load, *build_length_overrides(file, changes), *changes]
        elif command.name in ("chat", "export", "verify"):
            places = [file] if command.other is None else [file, command.other]
            return [
                resolve_recipe(str(Path(place) / RESOLVED), environment=self.environment)
                for place in places
            ]
        elif command.name in ("fork", "reproduce", "eval"):
            file = str(self.workspace.root / file / RESOLVED)
            if command.name == "fork":
                changes = [*build_length_overrides(file, changes), *changes]
        try:
            return [resolve_recipe(file, changes, environment=self.environment)]
        except StageRequiredError as staged:
            return [
                resolve_recipe(f"{file}#{stage}", changes, environment=self.environment)
                for stage in staged.stage_ids
            ]

    def hash_state(self, command: Command, examined: Examined) -> str:
        """Return a digest of a command, of its recipe with all it extends, and of its code."""
        place = self.workspace.root / command.target
        files = [place, place / RESOLVED]
        data = [
            hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
            for file in files
        ]
        texts = [hashlib.sha256(run.text.encode()).hexdigest() for run in examined.runs]
        codes = [code.digest for code in examined.codes]
        state = [list(command.words), codes, data, texts]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    def start(
        self, digest: str, *, allows_code: bool, is_queued: bool = False, slots: int = 1
    ) -> dict[str, Any]:
        """Start the command of a preview, once, or let it wait for devices.

        Raises:
            Refusal: 409 if it was not shown, was started already, or would do something else now;
                403 if it would run code that the user has not allowed.
        """
        preview = self.previews.pop(digest, None)
        if preview is None or time.monotonic() - preview.time > PREVIEW_SECONDS:
            raise Refusal(409, "preview", "look at the command again: its preview is too old")
        command = preview.command
        missing = self.check_unchanged(command, preview.state_digest)
        if is_code_missing(missing) and not allows_code:
            raise Refusal(403, "consent", NOT_ALLOWED)
        if allows_code:
            for code in missing:
                remember_trust(code, self.environment)
        lane = "short" if command.is_short else "queue" if is_queued else "now"
        if command.name == "chat":
            name = create_job_id()
            self.chats.open(name, command.words, command.shell)
            return {"id": name, "lane": "chat"}
        job = Job(
            create_job_id(),
            command.name,
            command.words,
            command.target,
            command.overrides,
            preview.state_digest,
            lane,
            slots,
            created=time.time(),
        )
        return self.describe(self.queue.add(job))

    def check_unchanged(self, command: Command, state: str) -> list[NamedCode]:
        """Return the code of a command that the user has not allowed before.

        Raises:
            Refusal: It would do something else than what was shown.
        """
        try:
            examined = self.read_alone(lambda: self.examine(command))
        except ProblemsFound:
            raise Refusal(409, "preview", CHANGED) from None
        if self.hash_state(command, examined) != state:
            raise Refusal(409, "preview", CHANGED)
        return [code for code in examined.codes if not is_trusted(code, self.environment)]

    def find_obstacle(self, job: Job) -> str | None:
        """Return why a job that waited must not start, or None."""
        if job.lane == "now":
            return None
        command = Command(job.command, job.words, job.target, job.overrides)
        try:
            missing = self.check_unchanged(command, job.state_digest)
        except Refusal as refusal:
            return refusal.message
        return NOT_ALLOWED if is_code_missing(missing) else None

    def list_jobs(self) -> dict[str, Any]:
        """Return the jobs that train, and the devices for which they wait."""
        queue = self.queue
        with queue.lock:
            jobs = [self.describe(job) for job in queue.jobs if job.lane != "short"]
        used = sum(
            job["slots"] for job in jobs if job["state"] == "running" and job["lane"] == "queue"
        )
        return {
            "jobs": jobs,
            "slots": queue.num_slots,
            "used": used,
            "devices": list(queue.devices),
        }

    def describe_job(self, name: str) -> dict[str, Any]:
        """Return a job with what it has printed. Raise Refusal if there is none of this id."""
        job = self.queue.find(name)
        folder = self.queue.get_folder(job)
        data = {**self.describe(job), "output": read_output(folder / OUTPUT)}
        if job.state == "done" and job.lane == "short":
            data["result"] = read_result(folder, job.command)
        return data

    def describe(self, job: Job) -> dict[str, Any]:
        """Return the state of a job, and the run that it trains."""
        return {
            "id": job.id,
            "command": job.command,
            "shell": Command(job.command, job.words, job.target).shell,
            "target": job.target,
            "lane": job.lane,
            "slots": job.slots,
            "devices": job.devices,
            "state": job.state,
            "reason": job.reason,
            "exit_code": job.exit_code,
            "created": job.created,
            "started": job.started,
            "ended": job.ended,
            "run": job.run,
        }

    def find_run(self, job: Job) -> str | None:
        """Return the run that a command says it trains."""
        named = RUN_FOLDER.search(read_output(self.queue.get_folder(job) / OUTPUT))
        folder = None if named is None else (self.catalog.folder.parent / named[1]).resolve()
        is_inside = folder is not None and folder.is_relative_to(self.catalog.folder)
        return str(folder.relative_to(self.catalog.folder)) if folder and is_inside else None


def is_code_missing(codes: Sequence[NamedCode]) -> bool:
    """Return whether any code needs to be allowed before a command starts."""
    return any(code.is_required and code.kind != "shell" for code in codes)
