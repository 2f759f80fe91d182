"""Run directories: selection, write access, and the files that describe the run."""

import fcntl
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Literal

from titanrun.components.checkpoints.spec.manifest import MANIFEST_FILE
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.base import dump_config, iter_nested_configs
from titanrun.config.data_diff import DataChange, diff_data
from titanrun.config.diagnostics import format_short_value
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import Problem, ProblemsFound, RelatedLocation, problem_error
from titanrun.config.redaction import redact, star_out_assigned_secrets
from titanrun.config.secrets import get_secret_values
from titanrun.config.tree import find_origin, format_path
from titanrun.recipe.comparing.resume_policy import (
    ResumeChanges,
    classify_resume_changes,
    format_resume_change,
    suggest_allowed_changes,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import Resolved, load_resolved
from titanrun.recipe.resolving.run_length import find_written_lengths
from titanrun.recipe.rundir.checkpoint_lookup import (
    check_checkpoints_match_recipe,
    find_parent_checkpoint,
    locate_checkpoint_folder,
)
from titanrun.recipe.rundir.plugin_copies import (
    build_changed_plugin_error,
    copy_plugin_files,
    find_changed_plugin,
)
from titanrun.recipe.rundir.run_files import (
    LOCK,
    OPENING,
    RESOLVED,
    RUNS,
    SOURCES,
    STATUS,
    build_starting_status,
    read_json_or_empty,
    write_indented_json,
    write_text_atomically,
)
from titanrun.recipe.rundir.run_metadata import add_start, build_start_record, get_diff_file_name
from titanrun.recipe.rundir.run_progress import (
    find_last_saved_step,
    has_no_more_steps,
    has_trained,
    is_cut_to,
    resumes_earlier_step,
)
from titanrun.recipe.rundir.saved_rank import check_same_adapters
from titanrun.recipe.rundir.stage_runs import is_moved_start
from titanrun.recipe.rundir.start_undo import keep_previous_start, refuse_starts
from titanrun.recipe.rundir.value_sources import build_run_sources

PRIVATE_FOLDER_MODE = 0o700
# leaves space for time and counter in the 255 bytes of a file name
LONGEST_RUN_NAME = 200
# the second identifies a checkpoint whose manifest is lost
FEWER_STEPS = "steps-already-done"
CHECKPOINT_MARKERS = (MANIFEST_FILE, ".metadata")


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A folder that a run may write into.

    `completed_step` is the last step of a finished run, or the last saved step of an unfinished
    one. `lock` is that of a run of replica groups on several machines, which this process has
    joined.
    """

    path: Path
    state: Literal["new", "unfinished", "finished"]
    resume_changes: ResumeChanges = field(default_factory=ResumeChanges)
    completed_step: int | None = None
    lock: IO[str] | None = None


def select_run_directory(resolved: Resolved, now: datetime) -> RunDirectory:
    """Return the directory of this run without writing anything.

    Raises:
        ProblemsFound: If the folder holds another run.
    """
    if resolved.recipe.dump_folder is None:
        check_checkpoints_match_recipe(resolved.run)
        return RunDirectory(choose_new_folder(Path(RUNS), str(resolved.run.name), now), "new")
    path = Path(resolved.recipe.dump_folder)
    origin = find_origin(resolved.tree, ("dump_folder",))
    if path.exists() and not path.is_dir():
        raise problem_error(
            "file", f"'{path}' is a file, not a folder", path=("dump_folder",), origin=origin
        )
    if not path.exists() or all(file.name in (LOCK, OPENING) for file in path.iterdir()):
        check_checkpoints_match_recipe(resolved.run)
        return RunDirectory(path, "new")
    check_no_links_outside(path, resolved.run)
    if any((path / name).exists() for name in CHECKPOINT_MARKERS):
        hint = "name a new folder; titanrun resume continues from a checkpoint"
        message = f"'{path}' is a checkpoint, or the remains of one, not a run directory"
        raise problem_error("file", message, path=("dump_folder",), origin=origin, hint=hint)
    if not (path / RESOLVED).is_file():
        hint = "name an empty or a new folder"
        raise problem_error(
            "file",
            f"'{path}' is not empty and contains no run",
            path=("dump_folder",),
            origin=origin,
            hint=hint,
        )
    return select_existing_run(path, resolved)


def check_no_links_outside(path: Path, run: Recipe) -> None:
    """Raise if an output folder of the run is a link out of the run directory."""
    for where, config in iter_nested_configs(run):
        folder = dict(config).get("folder")
        if (
            folder is not None
            and not is_storage_path(folder)
            and not (path / folder).resolve().is_relative_to(path.resolve())
        ):
            raise problem_error(
                "file",
                f"'{path / folder}' links to a folder outside of the run directory",
                path=(*where, "folder"),
                hint="remove the link",
            )


def choose_new_folder(parent: Path, name: str, now: datetime) -> Path:
    """Return `<parent>/<name>-<time>`, with a counter if that exists already."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:LONGEST_RUN_NAME].strip(".-") or "run"
    base = f"{safe}-{now:%Y%m%d-%H%M%S}"
    candidates = [parent / base, *(parent / f"{base}-{count}" for count in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def select_existing_run(path: Path, resolved: Resolved) -> RunDirectory:
    """Return a folder that contains a run.

    The same recipe resumes it. Another recipe is a problem unless nothing was trained yet.
    """
    check_not_in_use(path, resolved)
    status, has_begun = read_json_or_empty(path / STATUS), has_trained(path)
    changed_plugin = find_changed_plugin(path, resolved)
    if changed_plugin is not None and not has_begun:
        return RunDirectory(path, "new")
    before = load_resolved(path / RESOLVED)
    found = diff_data(dump_config(before), dump_config(resolved.run))
    changes = [change for change in found if not is_moved_start(change, path)]
    drift = classify_resume_changes(changes, before, resolved.run)
    if drift.refused_changes and not has_begun:
        return RunDirectory(path, "new")
    saved = find_last_saved_step(locate_checkpoint_folder(path, before.checkpoint.folder))
    if saved is not None:
        check_same_adapters(path, resolved)
    if drift.refused_changes:
        raise ProblemsFound([build_other_recipe_problem(path, drift.refused_changes, resolved)])
    if changed_plugin is not None:
        raise build_changed_plugin_error(path, changed_plugin, resolved)
    steps = resolved.run.training.steps
    done = status.get("step") if status.get("state") == "finished" else None
    is_cut = done is None and is_cut_to(saved, resolved.run, before)
    if saved is not None and isinstance(steps, int) and (steps < saved or is_cut):
        raise ProblemsFound([build_fewer_steps_problem(path, steps, saved, resolved)])
    is_seed = (
        before.checkpoint.create_seed_checkpoint
        and not resolved.run.checkpoint.create_seed_checkpoint
    )
    if (
        isinstance(done, int)
        and not is_seed
        and has_no_more_steps(resolved.run, before)
        and not resumes_earlier_step(resolved.run, before, done)
    ):
        return RunDirectory(path, "finished", completed_step=done)
    return RunDirectory(path, "unfinished", drift, completed_step=saved)


def check_not_in_use(path: Path, resolved: Resolved) -> None:
    """Raise if a live process holds the run's lock; a worker holds it while it runs."""
    lock = path / LOCK
    if not lock.exists():
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = read_json_or_empty(path / STATUS)
            who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
            raise ProblemsFound(
                [
                    build_dump_folder_problem(
                        "run-in-use",
                        f"'{path}' is in use by {who}",
                        resolved,
                        hint="wait for it, or stop it",
                    )
                ]
            ) from None


def check_last_checkpoint(directory: RunDirectory, run: Recipe) -> None:
    """Raise a problem if a finished run has lost the checkpoint of its last step."""
    config, done = run.checkpoint, directory.completed_step
    if not config.enable or config.load_only or run.kind == "eval" or done is None:
        return
    saved = find_last_saved_step(locate_checkpoint_folder(directory.path, config.folder))
    if saved is not None and saved >= done:
        return
    left = "no checkpoint is left" if saved is None else f"the newest is that of step {saved}"
    go_on = "from the beginning" if saved is None else f"from step {saved}"
    raise problem_error(
        "checkpoint",
        f"'{directory.path}' finished at step {done}, but its last checkpoint is gone: {left}",
        hint=f"restore it from a copy, or remove {directory.path / STATUS} to train {go_on}",
    )


def build_dump_folder_problem(
    rule: str,
    message: str,
    resolved: Resolved,
    *,
    hint: str,
    related: tuple[RelatedLocation, ...] = (),
) -> Problem:
    """Build the problem of a conflict between the recipe and its run directory."""
    origin = find_origin(resolved.tree, ("dump_folder",))
    return Problem(
        "conflict", message, ("dump_folder",), origin, rule=rule, hint=hint, related=related
    )


def build_fewer_steps_problem(path: Path, steps: int, saved: int, resolved: Resolved) -> Problem:
    """Build the problem of a run that is shortened to what is already trained, or to less."""
    related = tuple(
        RelatedLocation(
            node.origin, f"{format_path(path)} is {format_short_value(node.value)}", path
        )
        for path, node in find_written_lengths(resolved.tree)
    )
    message = f"'{path}' is at step {saved} already: nothing is left to train"
    if steps < saved:
        trained = pluralize(saved, "step")
        message = f"'{path}' has trained {trained} already, more than the requested {steps}"
    hint = f"request {max(saved, steps + 1)} or more, or name another folder"
    return build_dump_folder_problem(
        FEWER_STEPS,
        message,
        resolved,
        hint=hint,
        related=related,
    )


def build_other_recipe_problem(
    path: Path, changes: Sequence[DataChange], resolved: Resolved
) -> Problem:
    """Build one problem that lists every change a resumed run does not allow."""
    listed = tuple(
        RelatedLocation(
            find_origin(resolved.tree, change.path), format_resume_change(change), change.path
        )
        for change in changes
    )
    difference = pluralize(len(changes), "value differs", "values differ")
    message = f"'{path}' holds a run of another recipe: {difference}"
    hint = (
        "name another folder, undo the changes, or "
        f"{suggest_allowed_changes([change.path for change in changes])}"
    )
    return build_dump_folder_problem("another-run", message, resolved, hint=hint, related=listed)


def write_run_directory(
    directory: RunDirectory,
    resolved: Resolved,
    argv: Sequence[str],
    now: datetime,
    *,
    environment: Mapping[str, str],
    trusts_remote_code: bool = False,
) -> None:
    """Create the directory and write resolved.yaml, resolved.sources.json and run.json.

    Values of secrets, which `environment` has, are redacted in all of them.
    """
    hidden = get_secret_values(environment, resolved.run)
    said = [star_out_assigned_secrets(redact(word, hidden)) for word in argv]
    # before any file is created, which git would list as untracked
    start, diff = build_start_record(
        resolved.run,
        said,
        now,
        changes=directory.resume_changes.all_changes,
        previous_status=read_json_or_empty(directory.path / STATUS),
        secret_values=hidden,
        trusts_remote_code=trusts_remote_code,
    )
    create_run_directory(directory.path, resolved)
    if directory.completed_step is not None:
        keep_previous_start(directory.path)
    if directory.state == "new":
        refuse_starts(directory.path)
    # first: a run that dies before its worker runs must not look finished or never started
    write_indented_json(
        directory.path / STATUS, build_starting_status(read_json_or_empty(directory.path / STATUS))
    )
    write_text_atomically(directory.path / RESOLVED, resolved.text)
    write_indented_json(
        directory.path / SOURCES,
        build_run_sources(resolved, said),
    )
    if diff:
        write_text_atomically(directory.path / get_diff_file_name(diff), diff)
    add_start(
        directory.path,
        start,
        name=resolved.run.name,
        parent=find_parent_checkpoint(resolved.run),
        checkpoints=locate_checkpoint_folder(directory.path, resolved.run.checkpoint.folder),
    )


def write_recipe_files(directory: RunDirectory, resolved: Resolved, argv: Sequence[str]) -> None:
    """Create the directory and write only resolved.yaml and resolved.sources.json.

    For a queued job, which opens the run when it starts.
    """
    create_run_directory(directory.path, resolved)
    write_text_atomically(directory.path / RESOLVED, resolved.text)
    write_indented_json(
        directory.path / SOURCES,
        build_run_sources(resolved, argv),
    )


def create_run_directory(path: Path, resolved: Resolved) -> None:
    """Create the run directory if it does not exist, with copies of the recipe's plug-in files.

    Raises:
        ProblemsFound: If that is not possible.
    """
    try:
        # weights, data samples and logs are for the user, unless chmod says otherwise
        path.mkdir(mode=PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
        copy_plugin_files(resolved, path)
    except OSError as error:
        message = (
            f"cannot create the run directory '{path}': {(error.strerror or str(error)).lower()}"
        )
        origin = find_origin(resolved.tree, ("dump_folder",))
        raise problem_error(
            "file",
            message,
            path=("dump_folder",),
            origin=origin,
            hint="name a writable folder",
        ) from None
