"""Search for layouts of a recipe, with its model measured on one rank."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace

from titanrun.config.base import change_fields
from titanrun.config.problems import ProblemsFound
from titanrun.launch.launch_env import get_environment
from titanrun.launch.worker_query import query_worker
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.layout_search import DEGREE_FIELDS, LayoutSearch
from titanrun.recipe.plan.plan_layout import ModuleSize
from titanrun.recipe.plan.split_sizes import MeasuredModel, measure_shares
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.teacher import find_teacher_model


def build_search(
    options: Namespace,
    overrides: Sequence[str],
    resolved: Resolved,
    ranks: int,
    *,
    measured: MeasuredModel | None = None,
) -> LayoutSearch:
    """Return the search for layouts of a recipe.

    Args:
        options: Options of the command line.
        overrides: Overrides of the recipe.
        resolved: Recipe with them.
        ranks: Number of ranks.
        measured: Sizes of the model's parts. If None, they are measured on one rank.
    """

    def is_allowed(further: Sequence[str], count: int) -> bool:
        try:
            resolve_recipe(
                options.recipe,
                [*overrides, *further],
                environment=get_environment(),
                ranks=count,
            )
        except ProblemsFound:
            return False
        return True

    return LayoutSearch(
        resolved.run,
        measure_on_one_rank(resolved) if measured is None else measured,
        ranks,
        DEVICES[options.device],
        has_fixed_batch=resolved.recipe.training.global_batch_size != "auto",
        is_allowed=is_allowed,
        loss=resolved.recipe.loss,
        teacher=find_teacher_model(resolved.run),
    )


def measure_on_one_rank(resolved: Resolved) -> MeasuredModel:
    """Return the sizes of the model's parts on a single rank."""
    run, degrees = resolved.run, dict.fromkeys(DEGREE_FIELDS.values(), 1)
    alone = change_fields(run, parallelism=change_fields(run.parallelism, **degrees))
    parts = query_worker(
        "measure_memory", replace(resolved, run=alone), ranks=1, description="building the model"
    )
    sizes = [ModuleSize(*found) for found in (parts["embedding"], *parts["layers"], parts["head"])]
    return measure_shares(run.model, sizes)
