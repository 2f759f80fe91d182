"""Rules about activation checkpointing."""

from collections.abc import Iterator

from titanrun.distributed.config import SelectiveActivationCheckpointConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.unread import unread

FORCED = ("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns")
OPTION = ("activation_checkpoint", "selective_ac_option")
MATRIX = 2


@rule("forced-products-need-op")
def forced_products_need_op(run: Recipe) -> Iterator[Finding]:
    """Whose products are computed again is chosen only where single operations are: with selective_ac_option: op. Use it, or remove the
    names."""
    chosen = run.activation_checkpoint
    if isinstance(chosen, SelectiveActivationCheckpointConfig) and chosen.every is not None:
        yield unread(FORCED, OPTION, "is a number of layers", "set selective_ac_option: op, or remove it")


@rule("forced-products-exist")
def forced_products_exist(run: Recipe) -> Iterator[Finding]:
    """Each text in per_op_sac_force_recompute_mm_shapes_by_fqns must be part of the name of a linear module in some layer, such as
    layers.0.attention.wq: what names none changes nothing. Correct it, or remove it."""
    chosen = run.activation_checkpoint
    if not isinstance(chosen, SelectiveActivationCheckpointConfig) or chosen.every is not None:
        return
    texts = chosen.per_op_sac_force_recompute_mm_shapes_by_fqns
    if texts == SelectiveActivationCheckpointConfig().per_op_sac_force_recompute_mm_shapes_by_fqns:
        # the default names the router, which a dense model has not
        return
    names = linear_modules(run)
    for index, text in enumerate(texts):
        if not any(text in name for name in names):
            steps = sorted({name.split(".", 2)[2] for name in names})
            help = f"those of a layer are {', '.join(steps)}" if steps else "remove it"
            message = f"no linear module of {run.model.name} has '{text}' in its name"
            yield Finding(message, ((*FORCED, index),), help=help)


def linear_modules(run: Recipe) -> list[str]:
    """The modules of the layers whose weight is one matrix."""
    shapes = run.model.parameter_shapes().items()
    found = [name.rpartition(".") for name, shape in shapes if name.startswith("layers.") and len(shape) == MATRIX]
    return [module for module, _, weight in found if weight == "weight"]
