"""Builder of the reference of a run: a second model with the weights before the run, frozen."""

from collections.abc import Callable

from titanrun.components.optimizers.config import SgdConfig
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine
from titanrun.worker.weights.initial_weights import load_initial_weights


def build_frozen_reference(
    recipe: Recipe, ranks: RankGroup, build_engine_fn: Callable[..., Engine]
) -> Engine:
    """Build the engine of a model as it was before the run, in the layout of the trained one.

    Collective: all ranks must call this, because they load the weights together.

    Args:
        recipe: the recipe of the run.
        ranks: ranks that load together, in a group without the collective timeout of training.
        build_engine_fn: builds an engine with weights drawn from the seed for a recipe.
    """
    reference = build_engine_fn(build_reference_recipe(recipe), role="reference")
    load_initial_weights(
        recipe.checkpoint,
        model_config=recipe.model,
        engine=reference,
        ranks=ranks,
        seed=recipe.debug.seed,
    )
    reference.model.requires_grad_(False)
    reference.model.eval()
    return reference


def build_reference_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe of a run's model that trains nothing: no optimizer keeps state for it."""
    changes = {"optimizer": SgdConfig(), "fault_tolerance": FaultToleranceConfig()}
    # not through plain data, which fails validation if the worker has filled in a secret
    return type(recipe).model_validate({**dict(recipe), **changes})
