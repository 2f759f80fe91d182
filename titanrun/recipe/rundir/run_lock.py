"""Lock that allows one writing process per run directory.

The operating system releases it however its holder ends.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.rundir.run_files import LOCK, STATUS, read_json_or_empty

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
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProblemsFound([build_run_in_use_problem(run_dir)]) from error
        except OSError as error:
            log.warning(
                "cannot lock %s (%s): a second process could write into it",
                run_dir,
                error.strerror,
            )
        yield


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
