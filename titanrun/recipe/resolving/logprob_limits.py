"""Resolution of the limits of log-probabilities in RL, and of the scales that allow them."""

from typing import Any, NamedTuple

from titanrun.components.converters.config import ConverterConfig, Float8LinearConfig, QatConfig
from titanrun.components.converters.spec.batch_dependence import depends_on_batch
from titanrun.config.types import AUTO
from titanrun.recipe.recipe import Recipe
from titanrun.rl.config import RlConfig
from titanrun.rl.generators.config import StaticConfig, VllmConfig


class LogprobLimits(NamedTuple):
    """Limits of the differences between policy and generator, of any token and of their mean."""

    max: float
    mean: float


# sums in another order; measured: 2e-6
FP32_LIMITS = LogprobLimits(1e-4, 1e-5)
# a sum in another order may round to the next number of a format with few bits: one token in many
LOW_PRECISION_LIMITS = LogprobLimits(1e-2, 1e-5)
# sums in bfloat16 depend on the batch
BFLOAT16_LIMITS = LogprobLimits(0.25, 2e-2)
# scales that depend on the batch, or a generator that is not converted
ROUNDING_LIMITS = LogprobLimits(0.5, 5e-2)


def resolve_rl_converters(recipe: Recipe, converters: list[dict[str, Any]]) -> None:
    """Set the scales of float8 products in the plain data of converters.

    In RL a sequence must have the same log-probabilities in the batches of generator and trainer,
    which scales per row allow. A float8 all-gather has one scale per weight.
    """
    for config, data in zip(recipe.converters, converters, strict=True):
        if isinstance(config, Float8LinearConfig) and config.recipe_name == AUTO:
            needs_tensorwise = recipe.rl is None or config.enable_fsdp_float8_all_gather
            data["recipe_name"] = "tensorwise" if needs_tensorwise else "rowwise"


def resolve_logprob_limits(
    recipe: Recipe, config: RlConfig, converters: list[dict[str, Any]]
) -> dict[str, float | None]:
    """Return the limits of `rl.sync` that are `auto`.

    Args:
        recipe: the recipe.
        config: its rl section.
        converters: plain data of its converters, as resolved.
    """
    limits = find_logprob_limits(recipe, config, converters)
    values = {
        "max_logprob_diff": limits and limits.max,
        "max_logprob_diff_mean": limits and limits.mean,
    }
    return {name: value for name, value in values.items() if getattr(config.sync, name) == AUTO}


def find_logprob_limits(
    recipe: Recipe, config: RlConfig, converters: list[dict[str, Any]]
) -> LogprobLimits | None:
    """Return the limits that follow from the numerics, None if nothing can be compared."""
    if config.schedule.target_offpolicy or isinstance(config.generator, StaticConfig):
        return None
    resolved = [
        type(each).model_validate(data)
        for each, data in zip(recipe.converters, converters, strict=True)
    ]
    if any(is_rounded_apart(each, config) for each in resolved):
        return ROUNDING_LIMITS
    dtypes = (recipe.training.dtype, recipe.training.mixed_precision_param)
    if set(dtypes) != {"float32"}:
        return BFLOAT16_LIMITS
    return LOW_PRECISION_LIMITS if any(map(is_low_precision, resolved)) else FP32_LIMITS


def is_rounded_apart(converter: ConverterConfig, config: RlConfig) -> bool:
    """Return whether generator and policy round the same sequence differently."""
    uses_own_model = isinstance(config.generator, VllmConfig) and (
        config.generator.model == "huggingface"
    )
    return depends_on_batch(converter) or (uses_own_model and is_low_precision(converter))


def is_low_precision(converter: ConverterConfig) -> bool:
    """Return whether a converter rounds the inputs or weights of products."""
    return converter.number_format is not None or isinstance(converter, QatConfig)
