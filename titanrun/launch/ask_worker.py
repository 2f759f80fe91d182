"""Asks a process with torch something about a run: the command line never loads torch."""

import json
import subprocess
import sys
from typing import Any

from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.launch.environment import threads_environment
from titanrun.recipe.levels import in_tree
from titanrun.recipe.resolve import Resolved

# importing torch on a slow disk takes most of it
TIMEOUT_SECONDS = 600


def ask_worker(module: str, resolved: Resolved, *, ranks: int | None, what: str) -> Any:
    """What `titanrun.worker.<module>` answers, as JSON. Raises ProblemsFound where it breaks, and the problems that it found.

    Args:
        module: of titanrun.worker, run as a program.
        resolved: the run.
        ranks: the processes it is about; None: as many as the recipe says, one where the machine decides.
        what: how messages call the question, as "building the run".
    """
    request = json.dumps(
        {"resolved": resolved.text, "world_size": ranks or resolved.run.launch.ranks or 1}
    )
    command = [sys.executable, "-m", f"titanrun.worker.{module}"]
    try:
        done = subprocess.run(
            command,
            input=request,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise fail("internal", f"{what} takes longer than {TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise fail(
            "internal",
            f"{what} broke: {last_line(done.stderr)}",
            help="titanrun doctor says whether torch works",
        )
    answer = json.loads(last_line(done.stdout))
    if isinstance(answer, dict) and answer.get("problems"):
        raise ProblemsFound([in_tree(as_problem(item), resolved) for item in answer["problems"]])
    return answer


def as_problem(item: dict[str, Any]) -> Problem:
    """One problem as the process wrote it."""
    return Problem(
        item["code"],
        item["message"],
        tuple(item["path"]),
        severity=item["severity"],
        help=item["help"],
        rule=item["rule"],
    )


def machine_here(device: str, *, workers: int | None) -> dict[str, Any]:
    """What torch tells about this machine. Raises ProblemsFound where it cannot say.

    Args:
        device: as in a recipe.
        workers: how many of them our launcher starts and gives their share of the threads; None where a worker takes this process's place.
    """
    variables = None if workers is None else threads_environment(workers)
    command = [sys.executable, "-m", "titanrun.worker.machine", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        raise fail(
            "internal",
            f"torch does not tell about this machine: {last_line(done.stderr)}",
            help="see titanrun doctor",
        )
    found: dict[str, Any] = json.loads(last_line(done.stdout))
    return found


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")
