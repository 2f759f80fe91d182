"""Resolution of a run that another machine will train, for dry runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe


def resolve_for_elsewhere(
    file: str, overrides: Sequence[str] = (), *, environment: Mapping[str, str]
) -> Resolved:
    """Return the run, with a warning for each file, tokenizer or package that is missing here.

    Raises:
        ProblemsFound: With every problem of the recipe itself.
    """
    resolved = resolve_recipe(file, overrides, environment=environment)
    try:
        return resolve_recipe(file, overrides, environment=environment, should_check_inputs=True)
    except ProblemsFound as found:
        missing = tuple(replace(problem, severity="warning") for problem in found.problems)
        return replace(resolved, warnings=missing)
