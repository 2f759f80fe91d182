"""`python -m titanrun.worker.commands.check_kernels`: list converters without kernels.

Print a JSON list of the converters whose kernels this machine does not have.
"""

import json
import sys

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.device import select_device
from titanrun.recipe.resolving.resolve import load_resolved_text
from titanrun.worker.build.apply_converters import iter_missing_kernel_problems
from titanrun.worker.commands.dry_build import build_problem_to_dict


def main() -> int:
    """Read {"resolved": text of resolved.yaml, "world_size": N} from stdin and print the list.

    Return 0, also if the list is empty.
    """
    recipe = load_resolved_text(json.loads(sys.stdin.read())["resolved"])
    try:
        found: list[Problem] = list(
            iter_missing_kernel_problems(recipe, select_device(recipe.device))
        )
    except ProblemsFound as error:
        found = list(error.problems)
    sys.stdout.write(json.dumps([build_problem_to_dict(problem) for problem in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
