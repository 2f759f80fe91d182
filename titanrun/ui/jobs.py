"""Commands that the page starts: shown first, and started only as they were shown."""

import hashlib
import json
import re
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import OVERRIDE_PATTERN
from titanrun.cli.resume import build_resume_arguments
from titanrun.config.problems import ProblemsFound
from titanrun.config.redaction import redact_url_credentials
from titanrun.config.tree import format_path
from titanrun.config.trust import NamedCode, is_trusted, remember_trust
from titanrun.launch.detached_command import start_detached_command
from titanrun.recipe.consent.recipe_code import find_recipe_code
from titanrun.recipe.resolving.multi_stage import StageRequiredError
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.workspace import Workspace

COMMANDS = ("train", "resume", "fork", "reproduce")
PREVIEW_SECONDS = 300.0
MAX_PREVIEWS = 100
MAX_OUTPUT_BYTES = 64 * 1024
STEP_NAME = re.compile(r"step-(0|[1-9][0-9]*)")
RUN_FOLDER = re.compile(
    r"(?:run directory|restarting in|resuming in): (.+?)(?: \(no checkpoint.*)?$", re.M
)


@dataclass(frozen=True, slots=True)
class Preview:
    """A command as it was shown: words, code that it would run, and when."""

    words: tuple[str, ...]
    codes: tuple[NamedCode, ...]
    digest: str
    time: float


@dataclass(slots=True)
class Job:
    """A command that was started."""

    id: str
    words: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path
    started: float

    def describe(self, runs: Path) -> dict[str, Any]:
        """Return the state of the command, and the run that it trains."""
        code = self.process.poll()
        text = self.read_output()
        named = RUN_FOLDER.search(text)
        folder = None if named is None else (runs.parent / named[1]).resolve()
        is_inside = folder is not None and folder.is_relative_to(runs)
        return {
            "id": self.id,
            "shell": format_command(self.words),
            "state": "running" if code is None else "done" if code == 0 else "failed",
            "exit_code": code,
            "started": self.started,
            "run": str(folder.relative_to(runs)) if folder and is_inside else None,
            "output": text,
        }

    def read_output(self) -> str:
        """Return the end of what the command has printed."""
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_OUTPUT_BYTES))
            return file.read().decode("utf-8", "replace")


@dataclass(slots=True)
class JobStarter:
    """Previews and jobs of one server."""

    workspace: Workspace
    catalog: RunCatalog
    environment: Mapping[str, str]
    logs: Path
    read_alone: Callable[[Callable[[], Any]], Any]
    previews: dict[str, Preview] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)

    def preview(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the command of a request, and all that it would run, without starting it.

        Raises:
            Refusal: The request is not one of a page.
            ProblemsFound: The recipe has problems.
        """
        words = self.build_words(request)
        codes, about = self.read_alone(lambda: self.examine(words))
        now = time.monotonic()
        digest = secrets.token_urlsafe(16) + self.hash_state(words, codes)
        self.previews = {
            key: one for key, one in self.previews.items() if now - one.time < PREVIEW_SECONDS
        }
        if len(self.previews) >= MAX_PREVIEWS:
            raise Refusal(429, "busy", "too many previews")
        self.previews[digest] = Preview(words, codes, digest, now)
        return {
            "shell": format_command(words),
            "cwd": str(self.workspace.root),
            "digest": digest,
            "programs": [
                {
                    "path": format_path(code.path),
                    "text": code.text,
                    "kind": code.kind,
                    "trusted": is_trusted(code, self.environment),
                }
                for code in codes
            ],
            **about,
        }

    def build_words(self, request: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the words of the command line; what a user wrote never becomes an option."""
        command, overrides = request.get("command"), request.get("overrides", [])
        if command not in COMMANDS or not isinstance(overrides, list):
            raise Refusal(400, "usage", "this command cannot be started here")
        for text in overrides:
            check_override(text)
        if command == "train":
            target = self.get_recipe(str(request.get("target", "")))
        else:
            target = self.get_run(request)
        if command == "reproduce" and overrides:
            raise Refusal(400, "usage", "reproduce takes no overrides")
        return (command, target, *overrides)

    def get_recipe(self, name: str) -> str:
        """Return the word that names a recipe of the workspace."""
        if not self.workspace.read(name).text:
            raise Refusal(400, "usage", "the recipe is empty")
        if name.startswith("shipped:"):
            return name.partition(":")[2].removesuffix(".yaml")
        return f"./{name}"

    def get_run(self, request: Mapping[str, Any]) -> str:
        """Return the word that names a run, or one of its checkpoints."""
        folder = self.catalog.find(str(request.get("target", "")))
        step = request.get("step")
        if step is not None:
            if type(step) is not int or step < 0:
                raise Refusal(400, "usage", "a step is a whole number")
            folder = folder / "checkpoint" / f"step-{step}"
            if not folder.is_dir():
                raise Refusal(404, "checkpoint", "the run has no such checkpoint")
        if folder.is_relative_to(self.workspace.root):
            return f"./{folder.relative_to(self.workspace.root)}"
        return str(folder)

    def examine(self, words: Sequence[str]) -> tuple[tuple[NamedCode, ...], dict[str, Any]]:
        """Return the code that a command would run, and what else is to be known about it."""
        file, changes = words[1], list(words[2:])
        if words[0] == "resume":
            file, *load = build_resume_arguments(Path(words[1]))
            changes = [*load, *changes]
        elif words[0] != "train":
            place = self.workspace.root / words[1]
            file = str(place / RESOLVED)
        try:
            resolved: Resolved = resolve_recipe(file, changes, environment=self.environment)
        except StageRequiredError as staged:
            stages = [
                resolve_recipe(f"{file}#{stage}", changes, environment=self.environment)
                for stage in staged.stage_ids
            ]
            return self.describe_runs(stages)
        return self.describe_runs([resolved])

    def describe_runs(
        self, runs: Sequence[Resolved]
    ) -> tuple[tuple[NamedCode, ...], dict[str, Any]]:
        """Return the code of runs, and what they read from the environment."""
        codes = {
            code.digest: code
            for run in runs
            for code in find_recipe_code(run.run, self.workspace.root)
        }
        names = {name for run in runs for names in run.variables.values() for name in names}
        warnings = [
            redact_url_credentials(problem.message) for run in runs for problem in run.warnings
        ]
        about = {"env_names": sorted(names), "warnings": list(dict.fromkeys(warnings))}
        return tuple(codes.values()), about

    def hash_state(self, words: Sequence[str], codes: Sequence[NamedCode]) -> str:
        """Return a digest of a command, of its recipe on disk, and of the code it would run."""
        place = self.workspace.root / words[1]
        files = [place, place / RESOLVED]
        data = [
            hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
            for file in files
        ]
        state = [list(words), [code.digest for code in codes], data]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    def start(self, digest: str, *, allows_code: bool) -> dict[str, Any]:
        """Start the command of a preview, once.

        Raises:
            Refusal: 409 if it was not shown, was started already, or would do something else now;
                403 if it would run code that the user has not allowed.
        """
        preview = self.previews.pop(digest, None)
        if preview is None or time.monotonic() - preview.time > PREVIEW_SECONDS:
            raise Refusal(409, "preview", "look at the command again: its preview is too old")
        try:
            codes, _ = self.read_alone(lambda: self.examine(preview.words))
        except ProblemsFound:
            codes = ()
        if not preview.digest.endswith(self.hash_state(preview.words, codes)):
            raise Refusal(409, "preview", "the recipe has changed: look at the command again")
        missing = [code for code in codes if not is_trusted(code, self.environment)]
        if any(code.is_required and code.kind != "shell" for code in missing) and not allows_code:
            raise Refusal(403, "consent", "the recipe runs code that you have not allowed")
        if allows_code:
            for code in missing:
                remember_trust(code, self.environment)
        return self.launch(preview.words)

    def launch(self, words: tuple[str, ...]) -> dict[str, Any]:
        """Start a command and return its state."""
        name = secrets.token_hex(8)
        log = self.logs / f"{name}.log"
        process = start_detached_command(words, cwd=self.workspace.root, log=log)
        self.jobs[name] = Job(name, words, process, log, time.time())
        return self.describe_job(name)

    def describe_job(self, name: str) -> dict[str, Any]:
        """Return the state of a job. Raise Refusal if there is none of this id."""
        if name not in self.jobs:
            raise Refusal(404, "job", "there is no such job")
        return self.jobs[name].describe(self.catalog.folder)


def check_override(text: object) -> None:
    """Raise Refusal for text that is not one override on one line."""
    if (
        not isinstance(text, str)
        or not OVERRIDE_PATTERN.match(text)
        or any(ord(letter) < 32 for letter in text)
    ):
        raise Refusal(400, "override", "an override is path=value, path+=item, path-=item or path!")


def format_command(words: Sequence[str]) -> str:
    """Return a command as a shell would take it."""
    return shlex.join(["titanrun", *words])
