"""Files that another machine has just written: on a network file system they appear late here."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from titanrun.config.problems import ProblemsFound, problem_error

# a client of NFS remembers for 60 s what a folder holds (acdirmax)
LATE_SECONDS = 90.0
POLL_SECONDS = 0.5


def wait_for_files(
    is_visible: Callable[[], bool],
    folder: Path,
    what: str,
    *,
    print_line: Callable[[str], None],
) -> None:
    """Wait until files in a folder are visible on this machine.

    Args:
        is_visible: Returns whether they are.
        folder: The folder.
        what: Describes the files.
        print_line: Prints a line for the user, who waits.

    Raises:
        ProblemsFound: If they are not visible after LATE_SECONDS.
    """
    if is_visible():
        return
    print_line(f"waiting for {what}, which may appear late on a shared file system")
    end = time.monotonic() + LATE_SECONDS
    while not is_visible():
        if time.monotonic() >= end:
            raise build_late_problem(what)
        time.sleep(POLL_SECONDS)
        for place in (folder.parent, folder):
            # opening a folder makes the client of a network file system ask the server
            with suppress(OSError):
                os.scandir(place).close()


def build_late_problem(what: str) -> ProblemsFound:
    """Build the problem of files that another machine has written and that do not appear here."""
    return problem_error(
        "file",
        f"{what} is not visible on this machine after {LATE_SECONDS:.0f} s",
        hint="check that all machines see this folder on one file system, and start again",
    )
