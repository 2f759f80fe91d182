"""Resolution of a run that another machine will train."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from titanrun.config.problems import ProblemsFound
from titanrun.launch.config import SlurmLaunchConfig
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


def resolve_for_launch(
    file: str, overrides: Sequence[str] = (), *, environment: Mapping[str, str]
) -> Resolved:
    """Return the run as the place sees it where its launch section starts it.

    Slurm's nodes and this machine see the same files, pods and rented machines do not.

    Raises:
        ProblemsFound: With every problem of the recipe, and of its files if they must be here.
    """
    launch = resolve_recipe(file, overrides, environment=environment).run.launch
    if launch.is_submitted and not isinstance(launch, SlurmLaunchConfig):
        return resolve_for_elsewhere(file, overrides, environment=environment)
    return resolve_recipe(file, overrides, environment=environment, should_check_inputs=True)
