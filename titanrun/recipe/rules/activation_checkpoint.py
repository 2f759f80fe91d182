"""Rules about activation checkpointing."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.distributed.config import SelectiveActivationCheckpointConfig
from titanrun.distributed.spec.pipeline_schedule_csv import (
    ScheduleFileError,
    has_split_backward,
    read_schedule_csv,
)
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.no_effect import build_no_effect_violation
from titanrun.recipe.rules.pipeline import DEGREE, SCHEDULE, find_pipeline_schedule
from titanrun.recipe.rules.pipeline_file import FILE
from titanrun.recipe.rules.registry import RuleViolation, rule

FORCED = ("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns")
SAVES = ("activation_checkpoint", "per_op_sac_saves")
OPTION = ("activation_checkpoint", "selective_ac_option")
WHOLE_LAYERS = 'use selective_ac_option: "2", or activation_checkpoint: full'
MATRIX = 2


@rule("forced-products-need-op")
def forced_products_need_op(run: Recipe) -> Iterator[RuleViolation]:
    """Require selective_ac_option: op for settings of single operations.

    Which operations are kept, and whose matrix products are recomputed, has an effect only if
    single operations are chosen. Use selective_ac_option: op, or remove the settings.
    """
    chosen = run.activation_checkpoint
    if (
        isinstance(chosen, SelectiveActivationCheckpointConfig)
        and chosen.layer_interval is not None
    ):
        yield build_no_effect_violation(
            FORCED, OPTION, "is a number of layers", "set selective_ac_option: op, or remove it"
        )
        yield build_no_effect_violation(
            SAVES, OPTION, "is a number of layers", "set selective_ac_option: op, or remove it"
        )


@rule("forced-products-exist")
def forced_products_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require each forced recompute name to match a linear module.

    Each text in per_op_sac_force_recompute_mm_shapes_by_fqns must be part of the name of a linear
    module in some layer, such as layers.0.attention.wq: a text that matches none has no effect.
    Correct it, or remove it.
    """
    chosen = run.activation_checkpoint
    if not isinstance(chosen, SelectiveActivationCheckpointConfig) or not recomputes_operations(
        run
    ):
        return
    texts = chosen.per_op_sac_force_recompute_mm_shapes_by_fqns
    if texts == SelectiveActivationCheckpointConfig().per_op_sac_force_recompute_mm_shapes_by_fqns:
        # the default names the router, which a dense model lacks
        return
    names = list_matrix_modules(run)
    for index, text in enumerate(texts):
        if not any(text in name for name in names):
            steps = sorted({name.split(".", 2)[2] for name in names})
            hint = f"use one of {', '.join(steps)}" if steps else "remove it"
            message = f"no linear module of model '{run.model.name}' has '{text}' in its name"
            yield RuleViolation(message, ((*FORCED, index),), hint=hint)


@rule("split-backward-recomputes-layers")
def split_backward_recomputes_layers(run: Recipe) -> Iterator[RuleViolation]:
    """Require recomputation of whole layers with schedules that split the backward pass.

    The schedules InterleavedZeroBubble, ZBVZeroBubble and DualPipeV need recomputed activations
    twice, and PyTorch returns what selective_ac_option: op keeps only once. Recompute whole layers,
    or use another schedule.
    """
    schedule = find_pipeline_schedule(run.parallelism)
    if (
        schedule is not None
        and PIPELINE_SCHEDULES[schedule].has_split_backward
        and recomputes_operations(run)
    ):
        message = (
            f"schedule {schedule} splits backward passes, but recomputing single "
            "operations needs whole ones"
        )
        yield RuleViolation(message, (OPTION, SCHEDULE, DEGREE), hint=WHOLE_LAYERS)


@rule("split-file-recomputes-layers", level="environment")
def split_file_recomputes_layers(run: Recipe) -> Iterator[RuleViolation]:
    """Require recomputation of whole layers with schedule files that split the backward pass.

    The file in pipeline_parallel_schedule_csv may split backward passes (I and W), which need
    recomputed activations twice; PyTorch returns what selective_ac_option: op keeps only once.
    Recompute whole layers, or run whole backward passes (B).
    """
    file = run.parallelism.pipeline_parallel_schedule_csv
    if (
        run.parallelism.pipeline_parallel_degree == 1
        or file is None
        or not recomputes_operations(run)
    ):
        return
    try:
        splits = (
            has_split_backward(read_schedule_csv(Path(file))) if Path(file).is_file() else False
        )
    except ScheduleFileError:
        # another rule reports this
        return
    if splits:
        message = (
            f"'{file}' splits backward passes, but recomputing single operations needs whole ones"
        )
        yield RuleViolation(message, (OPTION, FILE), hint=WHOLE_LAYERS)


def recomputes_operations(run: Recipe) -> bool:
    """Return whether layers keep the results of single operations."""
    chosen = run.activation_checkpoint
    return isinstance(chosen, SelectiveActivationCheckpointConfig) and chosen.layer_interval is None


def list_matrix_modules(run: Recipe) -> list[str]:
    """Return the modules of the layers whose weight is one matrix."""
    shapes = run.model.parameter_shapes().items()
    found = [
        name.rpartition(".")
        for name, shape in shapes
        if name.startswith("layers.") and len(shape) == MATRIX
    ]
    return [module for module, _, weight in found if weight == "weight"]
