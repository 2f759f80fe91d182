"""Asks a process of its own whether a run can be built: the command line never loads torch."""

from typing import Any

from titanrun.config.problems import Problem
from titanrun.launch.ask_worker import ask_worker
from titanrun.recipe.resolve import Resolved


def try_build(resolved: Resolved, *, ranks: int | None = None) -> list[Problem]:
    """What building the run says, without memory for a single weight. Raises ProblemsFound where it breaks.

    `ranks` are the processes it is built for; None: as many as the recipe says, one where the machine decides.
    """
    return [as_problem(item) for item in ask_worker("try_build", resolved, ranks=ranks, what="building the run")]


def as_problem(item: dict[str, Any]) -> Problem:
    """One problem as the process wrote it."""
    return Problem(item["code"], item["message"], tuple(item["path"]), severity=item["severity"], help=item["help"], rule=item["rule"])
