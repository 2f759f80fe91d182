"""`python -m titanrun.worker.try_kernels`: prints, as a JSON list, which converters need kernels that this machine does not have."""

import json
import sys

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.device import find_device
from titanrun.recipe.resolve import read_resolved_text
from titanrun.worker.converters import missing_kernels
from titanrun.worker.try_build import as_data


def main() -> int:
    """Reads {"resolved": text of resolved.yaml, "world_size": N} from stdin. 0: the list was printed, empty or not."""
    recipe = read_resolved_text(json.loads(sys.stdin.read())["resolved"])
    try:
        found: list[Problem] = list(missing_kernels(recipe, find_device(recipe.device)))
    except ProblemsFound as error:
        found = list(error.problems)
    sys.stdout.write(json.dumps([as_data(problem) for problem in found]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
