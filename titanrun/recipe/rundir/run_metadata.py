"""run.json: a record of every start of a run, with all that may change its results."""

import platform
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import xxhash

from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.data_diff import DataChange
from titanrun.recipe.comparing.resume_policy import format_resume_change
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.git_state import GitState, read_git_state
from titanrun.recipe.rundir.input_hashes import hash_input_files
from titanrun.recipe.rundir.package_versions import (
    describe_plugins,
    get_installed_packages,
    hash_package_code,
)
from titanrun.recipe.rundir.run_files import (
    RUN_JSON,
    get_starts,
    read_json_or_empty,
    write_indented_json,
)
from titanrun.recipe.rundir.run_identity import choose_run_id

RUN_JSON_FORMAT = 1


def build_start_record(
    run: Recipe,
    argv: Sequence[str],
    now: datetime,
    *,
    changes: Sequence[DataChange] = (),
    previous_status: Mapping[str, Any] | None = None,
    secret_values: Collection[str],
    trusts_remote_code: bool = False,
) -> tuple[dict[str, Any], str]:
    """Return what is known about a start before the worker runs, and the git diff.

    The diff of the working directory is empty if there is none. `previous_status` is the content of
    status.json before this start, which tells when the run was last alive. `secret_values` are
    redacted in both.
    """
    environment, diff = build_environment_record(run, Path.cwd(), secret_values)
    record = {
        "time": now.isoformat(timespec="seconds"),
        "argv": list(argv),
        "cwd": str(Path.cwd()),
        "trust_remote_code": trusts_remote_code,
        "seed": run.debug.seed,
        "inputs": hash_input_files(run),
        "changes": [format_resume_change(change) for change in changes],
        "environment": environment,
    }
    heartbeat = (previous_status or {}).get("heartbeat")
    if isinstance(heartbeat, int | float):
        record["previous_heartbeat"] = heartbeat
    return record, diff


def add_start(
    run_directory: Path,
    start: Mapping[str, Any],
    *,
    name: str | None,
    parent: Mapping[str, Any] | None,
    checkpoints: AnyPath,
) -> None:
    """Add a start to run.json, which gets an id if it has none.

    Args:
        run_directory: Run directory.
        start: What `build_start_record` returned.
        name: Name of the run.
        parent: Checkpoint that the run starts from.
        checkpoints: Folder of the checkpoints of the run.
    """
    path = run_directory / RUN_JSON
    found = read_json_or_empty(path)
    first = {"format": RUN_JSON_FORMAT, "name": name, "parent": parent}
    known = {"id": choose_run_id(found, checkpoints), "starts": [*get_starts(found), start]}
    write_indented_json(path, {**first, **found, **known})


def record_decisions(
    run_directory: Path,
    decisions: Mapping[str, object],
    machine: Mapping[str, object],
    parameters: Mapping[str, int] | None = None,
) -> None:
    """Add the machine and its decisions (device, ranks) to the last start in run.json.

    Also add the numbers of all and of the trained parameters, if they are known.
    """
    path = run_directory / RUN_JSON
    record = {"format": RUN_JSON_FORMAT, **read_json_or_empty(path)}
    *before, last = get_starts(record) or [{}]
    last = {**last, "decided": dict(decisions), "machine": dict(machine)}
    if parameters is not None:
        last["parameters"] = dict(parameters)
    write_indented_json(path, {**record, "starts": [*before, last]})


def build_environment_record(
    run: Recipe, folder: Path, secret_values: Collection[str]
) -> tuple[dict[str, Any], str]:
    """Return the installed software, and the state and diff of a working directory."""
    git = read_git_state(folder, secret_values)
    record = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": get_installed_packages(),
        "code": hash_package_code(),
        "plugins": describe_plugins(run),
        "git": None if git is None else git_state_to_dict(git),
    }
    return record, "" if git is None else git.diff or ""


def git_state_to_dict(git: GitState) -> dict[str, Any]:
    """Convert the state of a repository to JSON; `diff` names the file next to run.json."""
    return {
        "commit": git.commit,
        "branch": git.branch,
        "dirty": git.is_dirty,
        "diff": get_diff_file_name(git.diff) if git.diff else None,
        "untracked": list(git.untracked),
    }


def get_diff_file_name(diff: str) -> str:
    """Return a file name derived from the content: an equal diff reuses the same file."""
    return f"git-{xxhash.xxh3_64_hexdigest(diff.encode('utf-8', 'replace'))}.diff"
