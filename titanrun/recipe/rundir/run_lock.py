"""Lock that allows one writing process per run directory.

The operating system releases it however its holder ends.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.rundir.run_files import LOCK, OPENING, STATUS, read_json_or_empty

log = logging.getLogger(__name__)


@contextmanager
def lock_run_directory(run_dir: Path) -> Iterator[None]:
    """Lock the run directory within the block.

    A forked child does not hold the lock: it may outlive this process, and the next start would
    find the run in use.

    Raises:
        ProblemsFound: another process holds the lock.
    """
    with (run_dir / LOCK).open("a") as file:
        os.register_at_fork(after_in_child=file.close)
        if not take_lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            raise ProblemsFound([build_run_in_use_problem(run_dir)])
        yield


def join_run(run_dir: Path) -> IO[str]:
    """Return the lock file of a run on several machines, which is in use until that is closed."""
    # shared files are locked for reading, where their server knows locks
    file = (run_dir / LOCK).open("a+")
    if not take_lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB):
        file.close()
        raise ProblemsFound([build_run_in_use_problem(run_dir)])
    return file


@contextmanager
def share_run_directory(run_dir: Path, group: int, joined: IO[str] | None = None) -> Iterator[None]:
    """Lock one replica group of a run on several machines within the block.

    Each machine shares the lock of the run directory, so that none has it alone.

    Args:
        run_dir: Run directory.
        group: Number of the replica group.
        joined: What `join_run` returned if the run was joined before; it is closed at the end.

    Raises:
        ProblemsFound: another process trains this group, or writes into the run directory alone.
    """
    with joined or join_run(run_dir) as shared, (run_dir / f"{LOCK}-{group}").open("a") as own:
        for file in (shared, own):
            os.register_at_fork(after_in_child=file.close)
        with hold_opening(run_dir):
            if not take_lock(own, fcntl.LOCK_EX | fcntl.LOCK_NB):
                raise ProblemsFound([build_group_in_use_problem(run_dir, group)])
        yield


def lock_groups(
    run_dir: Path, group: int | None, joined: IO[str] | None
) -> AbstractContextManager[None]:
    """Lock a run directory for all its replica groups, or for one of several machines."""
    if group is None:
        return lock_run_directory(run_dir)
    return share_run_directory(run_dir, group, joined)


@contextmanager
def hold_opening(run_dir: Path) -> Iterator[None]:
    """Let one launcher at a time see who trains the run, and write the files of its start."""
    with (run_dir / OPENING).open("a") as file:
        take_lock(file, fcntl.LOCK_EX)
        yield


def is_in_use(run_dir: Path) -> bool:
    """Return whether a process trains the run."""
    with (run_dir / LOCK).open("a") as file:
        return not take_lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def take_lock(file: IO[str], operation: int) -> bool:
    """Return whether a lock is taken, or cannot be taken by anybody."""
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning(
            "cannot lock %s (%s): a second process could write into it",
            Path(file.name).parent,
            error.strerror,
        )
    return True


def build_run_in_use_problem(run_dir: Path) -> Problem:
    """Build the problem that names the process writing into the run directory."""
    status = read_json_or_empty(run_dir / STATUS)
    holder = (
        f"process {status['pid']} on {status['host']}"
        if {"pid", "host"} <= status.keys()
        else "another process"
    )
    return Problem(
        "conflict",
        f"'{run_dir}' is in use by {holder}",
        rule="run-in-use",
        hint="wait for it, or use another folder",
    )


def build_group_in_use_problem(run_dir: Path, group: int) -> Problem:
    """Build the problem of a second process for one replica group."""
    return Problem(
        "conflict",
        f"replica group {group} of '{run_dir}' is trained by another process",
        ("fault_tolerance", "replica_id"),
        rule="run-in-use",
        hint="give each group its own replica_id, from 0",
    )
