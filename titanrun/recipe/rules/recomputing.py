"""Rules about activation checkpointing."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.distributed.config import SelectiveActivationCheckpointConfig
from titanrun.distributed.schedule_file import ScheduleFileError, read_schedule, splits_backward
from titanrun.distributed.stages import SCHEDULES
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.pipeline import DEGREE, SCHEDULE, named_schedule
from titanrun.recipe.rules.pipeline_file import FILE
from titanrun.recipe.rules.unread import unread

FORCED = ("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns")
SAVES = ("activation_checkpoint", "per_op_sac_saves")
OPTION = ("activation_checkpoint", "selective_ac_option")
WHOLE_LAYERS = 'use selective_ac_option: "2", or activation_checkpoint: full'
MATRIX = 2


@rule("forced-products-need-op")
def forced_products_need_op(run: Recipe) -> Iterator[Finding]:
    """Which operations are kept, and whose products are computed again, is chosen only where single operations are: with
    selective_ac_option: op. Use it, or remove the names."""
    chosen = run.activation_checkpoint
    if isinstance(chosen, SelectiveActivationCheckpointConfig) and chosen.every is not None:
        yield unread(
            FORCED, OPTION, "is a number of layers", "set selective_ac_option: op, or remove it"
        )
        yield unread(
            SAVES, OPTION, "is a number of layers", "set selective_ac_option: op, or remove it"
        )


@rule("forced-products-exist")
def forced_products_exist(run: Recipe) -> Iterator[Finding]:
    """Each text in per_op_sac_force_recompute_mm_shapes_by_fqns must be part of the name of a linear module in some layer, such as
    layers.0.attention.wq: what names none changes nothing. Correct it, or remove it."""
    chosen = run.activation_checkpoint
    if not isinstance(chosen, SelectiveActivationCheckpointConfig) or not recomputes_operations(
        run
    ):
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


@rule("split-backward-recomputes-layers")
def split_backward_recomputes_layers(run: Recipe) -> Iterator[Finding]:
    """Schedules that split the backward pass (InterleavedZeroBubble, ZBVZeroBubble, DualPipeV) need what is recomputed twice, and PyTorch
    gives what selective_ac_option: op keeps only once. Recompute whole layers, or take another schedule."""
    schedule = named_schedule(run.parallelism)
    if schedule is not None and SCHEDULES[schedule].splits_backward and recomputes_operations(run):
        message = f"schedule {schedule} splits backward passes, and recomputing single operations works in whole ones only"
        yield Finding(message, (OPTION, SCHEDULE, DEGREE), help=WHOLE_LAYERS)


@rule("split-file-recomputes-layers", level="environment")
def split_file_recomputes_layers(run: Recipe) -> Iterator[Finding]:
    """What pipeline_parallel_schedule_csv names may split backward passes (I and W), which need what is recomputed twice; PyTorch gives
    what selective_ac_option: op keeps only once. Recompute whole layers, or run whole backward passes (B)."""
    file = run.parallelism.pipeline_parallel_schedule_csv
    if (
        run.parallelism.pipeline_parallel_degree == 1
        or file is None
        or not recomputes_operations(run)
    ):
        return
    try:
        splits = splits_backward(read_schedule(Path(file))) if Path(file).is_file() else False
    except ScheduleFileError:
        # which another rule tells
        return
    if splits:
        message = f"'{file}' splits backward passes, and recomputing single operations works in whole ones only"
        yield Finding(message, (OPTION, FILE), help=WHOLE_LAYERS)


def recomputes_operations(run: Recipe) -> bool:
    """Whether layers keep the results of single operations."""
    chosen = run.activation_checkpoint
    return isinstance(chosen, SelectiveActivationCheckpointConfig) and chosen.every is None


def linear_modules(run: Recipe) -> list[str]:
    """The modules of the layers whose weight is one matrix."""
    shapes = run.model.parameter_shapes().items()
    found = [
        name.rpartition(".")
        for name, shape in shapes
        if name.startswith("layers.") and len(shape) == MATRIX
    ]
    return [module for module, _, weight in found if weight == "weight"]
