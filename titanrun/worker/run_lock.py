"""One writer a run directory: a lock that the system gives back when its holder ends, however it ends."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.run_dir import LOCK, STATUS, read_json

log = logging.getLogger(__name__)


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Holds the run directory within the block. Raises ProblemsFound where another process holds it.

    A process that is forked meanwhile does not hold it: it may outlive this one, and the next start would find the run in use.
    """
    with (run_dir / LOCK).open("a") as file:
        os.register_at_fork(after_in_child=file.close)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ProblemsFound([run_in_use(run_dir)]) from error
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s): nothing keeps a second process out of it",
                run_dir,
                error.strerror,
            )
        yield


def run_in_use(run_dir: Path) -> Problem:
    """The problem that names who writes into the run directory."""
    status = read_json(run_dir / STATUS)
    holder = (
        f"process {status['pid']} on {status['host']}"
        if {"pid", "host"} <= status.keys()
        else "another process"
    )
    return Problem(
        "conflict",
        f"'{run_dir}' is in use by {holder}",
        rule="run-in-use",
        help="wait for it, or name another folder",
    )
