"""Log and records of the start of a run."""

import logging
from dataclasses import asdict

import torch

from titanrun.components.converters.config import QloraConfig
from titanrun.config.pluralize import pluralize
from titanrun.distributed.device import emulates_bfloat16, get_device_name
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.spec.flops import count_parameters
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.resolving.emulated_dtype import find_emulated_dtype
from titanrun.recipe.rundir.run_files import METRICS
from titanrun.recipe.rundir.run_metadata import record_decisions
from titanrun.recipe.rundir.value_sources import is_decided
from titanrun.training.engine import Engine
from titanrun.worker.build.epochs_to_steps import (
    format_training_length,
    get_global_batch_size,
    get_num_steps,
)
from titanrun.worker.build.schedule_change import find_schedule_change
from titanrun.worker.hardware_info import get_hardware_info
from titanrun.worker.process_group_setup import collect_machine_decisions
from titanrun.worker.training_template import describe_training_template, trains_replies
from titanrun.worker.weights.end_token_rows import find_untrained_end_row
from titanrun.worker.worker_job import WorkerJob

log = logging.getLogger(__name__)

NOTHING_SAVED = "nothing is saved (checkpoint.enable: false)"


def log_run_start(
    recipe: Recipe,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    *,
    num_samples: int | None,
    engine: Engine,
) -> None:
    """Log a summary of the run on the main rank, and record what only the worker knows.

    These are machine-dependent decisions, the machine, and the number of parameters.
    """
    if job.rank_info.is_main_rank:
        log_run_summary(recipe, job, device, meshes, num_samples=num_samples)
        change = find_schedule_change(
            recipe.lr_scheduler, engine, job.resolved_path.parent / METRICS
        )
        if change is not None:
            log.info("%s", change)
        record_decisions(
            job.resolved_path.parent,
            collect_machine_decisions(device, meshes) | {"steps": get_num_steps(recipe)},
            get_hardware_info(device),
            None if engine.parameters is None else asdict(engine.parameters),
        )


def log_run_summary(
    recipe: Recipe,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    *,
    num_samples: int | None,
) -> None:
    """Log the model, the device and the length of the run, and warn of slow settings."""
    if recipe.description:
        log.info("%s", recipe.description)
    if recipe.debug.print_config:
        log.info("%s", job.resolved_text.rstrip())
    emulated = find_emulated_dtype(recipe)
    if emulated is not None and emulates_bfloat16(device):
        log.warning("%s: %s", emulated.message, emulated.hint)
    log.info(
        "%s: %s on %s; %s",
        f"{recipe.model.name} {recipe.model.flavor or ''}".rstrip(),
        format_model_size(recipe),
        get_device_name(device),
        format_training_length(recipe, num_samples=num_samples),
    )
    if trains_replies(recipe):
        log.info("%s", describe_training_template(recipe))
        row = find_untrained_end_row(recipe)
        if row is not None:
            log.warning("%s", row.message)
    log.info("%s", format_saves(recipe))
    ranks = 1 if meshes is None else meshes.parallel_dims.dp_size
    if ranks > 1 and is_decided(job.resolved_path.parent, "training.global_batch_size"):
        log.info("%s", format_global_batch(recipe, ranks))


def format_model_size(recipe: Recipe) -> str:
    """Format the number of parameters of the model itself, and the dtype that they are stored in.

    Adapters are among the trainable parameters; the others have the compute dtype, or the fewer
    bits that qlora itself tells.
    """
    size, training = f"{count_parameters(recipe.model):,} parameters", recipe.training
    lora = find_lora_converter(recipe)
    if lora is None:
        return f"{size} in {training.dtype}"
    if isinstance(lora, QloraConfig):
        return f"{size} without adapters"
    frozen = get_precision(training.dtype, training.mixed_precision_param).compute_dtype
    return f"{size} without adapters, frozen in {str(frozen).removeprefix('torch.')}"


def format_saves(recipe: Recipe) -> str:
    """Format when checkpoints are saved, such as `saves every 100 steps and at the end`."""
    section = recipe.checkpoint
    if not section.enable:
        return NOTHING_SAVED
    if section.load_only:
        return "saves nothing (checkpoint.load_only: true)"
    if isinstance(section.interval, int):
        steps = get_num_steps(recipe)
        if section.interval >= steps:
            return "saves at the end"
        return f"saves every {pluralize(section.interval, 'step')} and at the end"
    return f"saves every {section.interval} and at the end"


def format_global_batch(recipe: Recipe, ranks: int) -> str:
    """Format a global batch that follows from the number of ranks, and how to keep that of one.

    That of one cannot be kept if it does not divide over the ranks.

    Example: `global batch: 16 sequences = 8 a rank x 2 ranks (training.local_batch_size=4
    training.global_batch_size=8 keep what one rank has)`.
    """
    local = recipe.training.local_batch_size
    total = pluralize(get_global_batch_size(recipe), "sequence")
    text = f"global batch: {total} = {local} a rank x {ranks} ranks"
    if local % ranks:
        return text
    sizes = f"training.local_batch_size={local // ranks} training.global_batch_size={local}"
    return f"{text} ({sizes} keep what one rank has)"
