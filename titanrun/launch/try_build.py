"""Asks a process of its own whether a run can be built: the command line never loads torch."""

import json
import subprocess
import sys
from typing import Any

from titanrun.config.problems import Problem, fail
from titanrun.recipe.resolve import Resolved

# importing torch on a slow disk takes most of it
TIMEOUT_SECONDS = 600


def try_build(resolved: Resolved, *, ranks: int | None = None) -> list[Problem]:
    """What building the run says, without memory for a single weight. Raises ProblemsFound where it breaks.

    `ranks` are the processes it is built for; None: as many as the recipe says, one where the machine decides.
    """
    request = json.dumps({"resolved": resolved.text, "world_size": ranks or resolved.run.launch.ranks or 1})
    command = [sys.executable, "-m", "titanrun.worker.try_build"]
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise fail("internal", f"building the run takes longer than {TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise fail("internal", f"building the run broke: {last_line(done.stderr)}", help="titanrun doctor says whether torch works")
    return [as_problem(item) for item in json.loads(last_line(done.stdout))]


def as_problem(item: dict[str, Any]) -> Problem:
    """One problem as the process wrote it."""
    return Problem(item["code"], item["message"], tuple(item["path"]), severity=item["severity"], help=item["help"], rule=item["rule"])


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")
