"""Builder of what losses read beside the tokens of a batch, such as a reference's outputs.

The reference is the model as it was before the run. With adapters this is the model without its
adapters, else a second, frozen model.
"""

from collections.abc import Callable

from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.engine import Engine
from titanrun.training.preference_inputs import FrozenReference, PreferenceInputs, PrepareBatchesFn
from titanrun.worker.build.build_reference import build_frozen_reference
from titanrun.worker.build.build_teacher import attach_teacher


def build_loss_inputs(
    recipe: Recipe, engine: Engine, ranks: RankGroup, build_engine_fn: Callable[..., Engine]
) -> PrepareBatchesFn | None:
    """Build the function that adds to the batches of a step what the loss reads.

    Return None if the loss reads only tokens, or a teacher, which becomes a part of the engine's
    passes.

    Args:
        recipe: the recipe of the run.
        engine: the trained engine, with its initial or resumed weights.
        ranks: ranks that load together.
        build_engine_fn: builds another engine of the same layout, from a recipe, with weights drawn
            from the seed, for a role beside the trained model.
    """
    attach_teacher(recipe, engine, ranks, build_engine_fn)
    if recipe.loss.compares is None:
        return None
    reference = None
    if recipe.loss.needs_reference:
        reference = build_reference(recipe, engine, ranks, build_engine_fn)
    return PreferenceInputs(recipe.loss, engine, reference)


def build_reference(
    recipe: Recipe, engine: Engine, ranks: RankGroup, build_engine_fn: Callable[..., Engine]
) -> FrozenReference:
    """Build the model as it was before the run. For the arguments see `build_loss_inputs`."""
    if find_lora_converter(recipe) is not None:
        return FrozenReference(engine, should_disable_adapters=True)
    frozen = build_frozen_reference(recipe, ranks, build_engine_fn)
    return FrozenReference(frozen, should_disable_adapters=False)
