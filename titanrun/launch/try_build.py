"""Asks a process of its own whether a run can be built here: the command line never loads torch."""

from titanrun.config.problems import Problem
from titanrun.launch.ask_worker import as_problem, ask_worker
from titanrun.recipe.resolve import Resolved


def try_build(resolved: Resolved, *, ranks: int | None = None) -> list[Problem]:
    """What building the run says, without memory for a single weight. Raises ProblemsFound where it breaks.

    `ranks` are the processes it is built for; None: as many as the recipe says, one where the machine decides.
    """
    return [
        as_problem(item)
        for item in ask_worker("try_build", resolved, ranks=ranks, what="building the run")
    ]


def try_kernels(resolved: Resolved) -> list[Problem]:
    """Which converters need kernels that this machine does not have; no process is started for a recipe without such converters, nor for
    one on the CPU, of which a rule knows."""
    run = resolved.run
    if run.device == "cpu" or all(converter.needs is None for converter in run.converters):
        return []
    return [
        as_problem(item)
        for item in ask_worker("try_kernels", resolved, ranks=1, what="looking at this machine")
    ]
