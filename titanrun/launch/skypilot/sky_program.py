"""SkyPilot through its program `sky`."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error

JSON_LIST = re.compile(r"^\[", re.MULTILINE)


def build_sky_command(*words: str) -> list[str]:
    """Build a command. Raise ProblemsFound if the program is missing."""
    program = shutil.which("sky")
    if program is None:
        raise problem_error(
            "usage",
            "launch: skypilot needs the program sky, which is not installed on this machine",
            path=("launch",),
            hint="pip install skypilot; --dry-run shows the task without it",
        )
    return [program, *words]


def run_sky(*words: str) -> str:
    """Run a command and return its output. Raise ProblemsFound if it fails."""
    done = subprocess.run(
        build_sky_command(*words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise problem_error(
            "usage",
            f"sky {words[0]} failed: {said or 'no message'}",
            path=("launch",),
            hint="`sky check` shows which clouds and clusters can be used",
        )
    return done.stdout


def find_job_state(name: str) -> str | None:
    """Return the state of the managed job of this name, or None if none is unfinished.

    Raises:
        ProblemsFound: sky cannot list its jobs.
    """
    listed = run_sky("jobs", "queue", "--refresh", "--skip-finished", "--output", "json")
    states = (str(job.get("status")) for job in read_jobs(listed) if job.get("job_name") == name)
    return next(states, None)


def read_jobs(text: str) -> list[Mapping[str, Any]]:
    """Return the jobs in the output of `sky`; messages may precede them."""
    found = JSON_LIST.search(text)
    return [] if found is None else parse_json(text[found.start() :])
