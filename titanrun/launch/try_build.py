"""Trial build of a run in a separate process: the command line never loads torch."""

from titanrun.config.problems import Problem
from titanrun.launch.worker_query import problem_from_dict, query_worker
from titanrun.recipe.resolving.resolve import Resolved


def find_build_problems(resolved: Resolved, *, ranks: int | None = None) -> list[Problem]:
    """Return the problems of building the run without memory for its weights.

    `ranks` is the number of processes to build for; None: that of the recipe, or one if it depends
    on the machine. Raises ProblemsFound if the build fails.
    """
    return [
        problem_from_dict(item)
        for item in query_worker("dry_build", resolved, ranks=ranks, description="building the run")
    ]


def find_kernel_problems(resolved: Resolved) -> list[Problem]:
    """Return the problems of converters whose kernels this machine does not have.

    No process is started for a recipe without such converters, nor for one on the CPU, which a rule
    rejects.
    """
    run = resolved.run
    if run.device == "cpu" or all(
        converter.device_requirement is None for converter in run.converters
    ):
        return []
    return [
        problem_from_dict(item)
        for item in query_worker(
            "check_kernels", resolved, ranks=1, description="inspecting this machine"
        )
    ]
