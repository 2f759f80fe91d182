"""run.json: every start of a run, with all that may make another start give other numbers."""

import platform
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import xxhash

from titanrun.config.diff import Change
from titanrun.recipe.drift import change_text
from titanrun.recipe.fingerprints import input_files
from titanrun.recipe.git_state import GitState, git_state
from titanrun.recipe.installed import code_digest, packages, plugins
from titanrun.recipe.recipe import Recipe

FORMAT = 1


def start_record(
    run: Recipe,
    argv: Sequence[str],
    now: datetime,
    *,
    changes: Sequence[Change] = (),
    hidden: Collection[str],
    trusts_remote_code: bool = False,
) -> tuple[dict[str, Any], str]:
    """What is known about a start before a worker stands, and the diff of the working directory (empty where there is none).

    What is `hidden` stands in neither.
    """
    environment, diff = environment_record(run, Path.cwd(), hidden)
    record = {
        "time": now.isoformat(timespec="seconds"),
        "argv": list(argv),
        "cwd": str(Path.cwd()),
        "trust_remote_code": trusts_remote_code,
        "seed": run.debug.seed,
        "inputs": input_files(run),
        "changes": [change_text(change) for change in changes],
        "environment": environment,
    }
    return record, diff


def environment_record(
    run: Recipe, folder: Path, hidden: Collection[str]
) -> tuple[dict[str, Any], str]:
    """What is installed here, and the state of a working directory with its diff."""
    git = git_state(folder, hidden)
    record = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "packages": packages(),
        "code": code_digest(),
        "plugins": plugins(run),
        "git": None if git is None else as_data(git),
    }
    return record, "" if git is None else git.diff or ""


def as_data(git: GitState) -> dict[str, Any]:
    """The state of a repository, and the name of the file beside run.json that holds the diff."""
    return {
        "commit": git.commit,
        "branch": git.branch,
        "dirty": git.is_dirty,
        "diff": diff_name(git.diff) if git.diff else None,
        "untracked": list(git.untracked),
    }


def diff_name(diff: str) -> str:
    """Named after its content: the same diff at the next start is the same file."""
    return f"git-{xxhash.xxh3_64_hexdigest(diff.encode('utf-8', 'replace'))}.diff"
