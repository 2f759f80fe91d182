"""Builder of the teacher of a loss of distillation, in the layout of the trained model."""

from collections.abc import Callable

from torch import Tensor

from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.teacher import require_teacher
from titanrun.training.engine import Engine
from titanrun.training.runners.distillation_forward_backward import DistillationForwardBackward
from titanrun.worker.weights.initial_weights import load_weight_stream
from titanrun.worker.weights.load_model import load_weights


def attach_teacher(
    recipe: Recipe, engine: Engine, ranks: RankGroup, build_engine_fn: Callable[..., Engine]
) -> None:
    """Let the passes of an engine read the predictions of the recipe's teacher, if it has one.

    Collective: all ranks must call this, because each reads the weights.

    Args:
        recipe: the recipe of the run.
        engine: the trained engine.
        ranks: ranks that load together, in a group without the collective timeout of training.
        build_engine_fn: builds an engine with weights drawn from the seed for another recipe.

    Raises:
        ProblemsFound: there is no such teacher, or it does not fit the run.
    """
    if recipe.loss.teacher_path is None:
        return
    teacher = build_teacher(recipe, ranks, build_engine_fn)
    engine.runner = DistillationForwardBackward(engine.runner, teacher)


def build_teacher(
    recipe: Recipe, ranks: RankGroup, build_engine_fn: Callable[..., Engine]
) -> Engine:
    """Build the engine of the recipe's teacher. For the arguments see `attach_teacher`."""
    found = require_teacher(recipe)
    teacher = build_engine_fn(found.recipe, role="teacher")
    # each rank reads all files. The ranks wait for the slowest here, because the timeout of a
    # training step would be too short
    weights: dict[str, Tensor] = {}
    ranks.all_gather_results(lambda: weights.update(load_weights(found.recipe, found.weights)))
    load_weight_stream(weights.items(), teacher, strict=True)
    teacher.model.requires_grad_(False)
    teacher.model.eval()
    return teacher
