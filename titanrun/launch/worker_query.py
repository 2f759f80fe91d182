"""Queries to a process with torch: the command line never loads torch."""

import json
import subprocess
import sys
from typing import Any

from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.launch.launch_env import build_threads_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import attach_recipe_origin

# most of it is for importing torch from a slow disk
TIMEOUT_SECONDS = 600


def query_worker(module: str, resolved: Resolved, *, ranks: int | None, description: str) -> Any:
    """Return the JSON answer of `titanrun.worker.<module>`.

    Args:
        module: Module of titanrun.worker, run as a program.
        resolved: The run.
        ranks: The number of processes; None: that of the recipe, or one if it depends on the
            machine.
        description: The name of the query in messages, such as "building the run".

    Raises:
        ProblemsFound: If the process fails, or with the problems that it found.
    """
    require_torch()
    request = json.dumps(
        {"resolved": resolved.text, "world_size": ranks or resolved.run.launch.world_size or 1}
    )
    command = [sys.executable, "-m", f"titanrun.worker.commands.{module}"]
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
        raise problem_error(
            "internal", f"{description} takes longer than {TIMEOUT_SECONDS} s"
        ) from None
    if done.returncode != 0:
        raise problem_error(
            "internal",
            f"{description} failed: {get_last_output_line(done.stderr)}",
            hint="run titanrun doctor to check torch",
        )
    answer = json.loads(get_last_output_line(done.stdout))
    if isinstance(answer, dict) and answer.get("problems"):
        raise ProblemsFound(
            [attach_recipe_origin(problem_from_dict(item), resolved) for item in answer["problems"]]
        )
    return answer


def problem_from_dict(item: dict[str, Any]) -> Problem:
    """Convert a problem from the output of the process."""
    return Problem(
        item["code"],
        item["message"],
        tuple(item["path"]),
        severity=item["severity"],
        hint=item["help"],
        rule=item["rule"],
    )


def query_machine(device: str, *, num_workers: int | None) -> dict[str, Any]:
    """Return torch's report about this machine.

    Args:
        device: Device as in a recipe.
        num_workers: Number of workers that our launcher starts with a share of the threads each;
            None if
            a worker replaces this process.

    Raises:
        ProblemsFound: If torch cannot report.
    """
    require_torch()
    variables = None if num_workers is None else build_threads_environment(num_workers)
    command = [sys.executable, "-m", "titanrun.worker.hardware_info", device]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode != 0:
        raise problem_error(
            "internal",
            f"torch cannot inspect this machine: {get_last_output_line(done.stderr)}",
            hint="run titanrun doctor",
        )
    found: dict[str, Any] = json.loads(get_last_output_line(done.stdout))
    return found


def get_last_output_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no word")


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
