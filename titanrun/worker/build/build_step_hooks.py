"""Builders of the step hooks.

They include non-finite checks, spike detection, the hang watchdog, and all other optional features.
"""

import faulthandler
import json
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from torch import nn

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.held_out_history import HeldOutHistory, load_held_out_history
from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.exit_codes import EXIT_HANG
from titanrun.config.pluralize import pluralize
from titanrun.distributed.flight_recorder import dump_flight_recorder
from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import broadcast_bool, set_pg_timeout
from titanrun.distributed.rank_heartbeats import format_silent_ranks
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import (
    EXPERT_LOADS,
    METRICS,
    STATUS,
    read_json_or_empty,
    write_indented_json,
)
from titanrun.rl.logprob_check_hook import LogprobCheckHook
from titanrun.rl.nonfinite_rollouts import collect_token_ids
from titanrun.rl.rollout_recorder_hook import RolloutRecorderHook
from titanrun.rl.rollout_validation_hook import RolloutValidationHook
from titanrun.training.checkpoint_schedule import CheckpointSchedule
from titanrun.training.gc_control import GarbageCollection
from titanrun.training.hooks.checkpoint_schedule_hook import CheckpointScheduleHook
from titanrun.training.hooks.expert_load_hook import ExpertLoadHook, number_moe_layers
from titanrun.training.hooks.gc_hook import GcHook
from titanrun.training.hooks.loss_inputs_hook import LossInputsHook
from titanrun.training.hooks.loss_spike_hook import LossSpikeHook
from titanrun.training.hooks.nonfinite_report_hook import NonFiniteReportHook
from titanrun.training.hooks.profiler_hook import ProfilerHook
from titanrun.training.hooks.samples_hook import SamplesHook
from titanrun.training.hooks.status_hook import StatusHook
from titanrun.training.hooks.step_replay_hook import StepReplayHook
from titanrun.training.hooks.straggler_hook import StragglerHook
from titanrun.training.hooks.timeout_hook import TimeoutHook
from titanrun.training.hooks.validation_hook import TOKENS, ValidationHook
from titanrun.training.hooks.watchdog_hook import WatchdogHook
from titanrun.training.loss_spikes import LossSpikeDetector
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.training.nonfinite_report import NonFiniteReport
from titanrun.training.step_replay import StepReplay
from titanrun.training.stragglers import StragglerDetector
from titanrun.training.train_hook import StepInput, TrainHook
from titanrun.training.watchdog import Hang, Watchdog
from titanrun.worker.build.build_checkpoints import is_saving_enabled
from titanrun.worker.build.build_generation_samples import build_image_sampler, build_text_sampler
from titanrun.worker.build.build_model import build_expert_count_reductions
from titanrun.worker.build.source_parts import SourceParts
from titanrun.worker.logging_setup import FAILURES_LOGGER
from titanrun.worker.worker_failures import HELP_SILENT_RANK
from titanrun.worker.worker_job import WorkerJob

# ranks that hang together notice it at about the same time: each has this long to write its report
HANG_REPORT_SECONDS = 3.0

log = logging.getLogger(__name__)


def build_step_hooks(
    parts: SourceParts,
    job: WorkerJob,
    meshes: ParallelMeshes | None,
    *,
    on_step: Callable[[int], None],
    after_step: Callable[[int], None],
    watchdog: Watchdog,
) -> tuple[TrainHook, ...]:
    """Build the hooks that the recipe enables, in the order in which each event calls them.

    Args:
        parts: step source, and the engine and checkpoints of the run.
        job: files of the run, and the rank of this process.
        meshes: meshes of this rank. None for a single process.
        on_step: called with the number of each completed step.
        after_step: advances the profilers.
        watchdog: detects a hang of this rank.
    """
    recipe, rollouts = parts.recipe, parts.rollouts
    profiling = recipe.profiling
    possible: list[TrainHook | None] = [
        RolloutRecorderHook(rollouts.recorder) if rollouts and rollouts.recorder.path else None,
        TimeoutHook(partial(apply_train_timeout, recipe, meshes)) if meshes else None,
        GcHook(GarbageCollection(recipe.training)),
        StatusHook(on_step),
        WatchdogHook() if any(watchdog.limits.values()) else None,
        # before the hooks that may wait for other ranks
        build_straggler_hook(parts),
        build_step_replay_hook(parts),
        LossInputsHook(parts.prepare_batches) if parts.prepare_batches else None,
        LogprobCheckHook(recipe.rl) if rollouts and recipe.rl else None,
        build_expert_load_hook(parts, job, meshes),
        NonFiniteReportHook(partial(write_nonfinite_report, parts, job)),
        LossSpikeHook() if recipe.guard.spike_sigmas is not None else None,
        build_validation_hook(parts, job),
        CheckpointScheduleHook(build_checkpoint_schedule(recipe))
        if is_saving_enabled(recipe.checkpoint)
        else None,
        build_samples_hook(parts, job),
        ProfilerHook(after_step)
        if profiling.enable_profiling or profiling.enable_memory_snapshot
        else None,
    ]
    return tuple(hook for hook in possible if hook is not None)


def build_straggler_hook(parts: SourceParts) -> StragglerHook | None:
    """Build the detection of slow ranks.

    Return None if it is disabled or there is only one rank.
    """
    engine = parts.engine
    detector = StragglerDetector(
        parts.recipe.guard.straggler_ratio,
        rank_group=get_default_rank_group(),
        pp_rank=0 if engine.meshes is None else engine.meshes.pp_rank,
        device=engine.device,
    )
    if detector.ratio is None:
        return None
    detector.register_hooks(engine.model, engine.optimizer)
    # all ranks generate rollouts together, so loading the input is not the work of one rank
    return StragglerHook(detector, includes_input=parts.rollouts is None)


def build_expert_load_hook(
    parts: SourceParts, job: WorkerJob, meshes: ParallelMeshes | None
) -> ExpertLoadHook | None:
    """Build the log of the experts' loads, or return None if the model has no experts."""
    model = parts.recipe.model
    if not model.count_routed_experts():
        return None
    layers = number_moe_layers(parts.engine.model)
    num_layers = max(layers, default=-1) + 1
    if meshes is not None:
        # a rank of a pipeline may have only the first layers
        size = torch.tensor(float(num_layers), device=meshes.device)
        num_layers = int(meshes.all_reduce_max_(size, "pp"))
    runner = None if parts.rollouts is None else parts.rollouts.runner
    # those of other processes and of vLLM have no model here
    generator = getattr(getattr(runner, "generator", None), "model", None)
    return ExpertLoadHook(
        layers,
        num_layers,
        model.count_routed_experts(),
        file=job.resolved_path.parent / EXPERT_LOADS if job.rank_info.is_main_rank else None,
        logs_each_expert=parts.recipe.metrics.tokens_per_expert,
        generator_layers=number_moe_layers(generator) if isinstance(generator, nn.Module) else {},
        **build_expert_count_reductions(meshes),
    )


def build_step_replay_hook(parts: SourceParts) -> StepReplayHook | None:
    """Build the replay of steps, or return None if it is disabled."""
    interval = parts.recipe.guard.replay_interval
    if interval is None:
        return None
    return StepReplayHook(StepReplay(interval, get_default_rank_group()))


def build_validation_hook(parts: SourceParts, job: WorkerJob) -> TrainHook | None:
    """Build the validation of pretraining or RL, or return None if it is disabled."""
    if parts.rollouts is not None and parts.rollouts.validator is not None:
        return RolloutValidationHook(parts.rollouts.validator, parts.rollouts.runner)
    if parts.validator is None:
        return None
    history, metrics = HeldOutHistory(), job.resolved_path.parent / METRICS
    if parts.state.step and metrics.is_file():
        history = load_held_out_history(read_metrics(metrics), last_step=parts.state.step)
    return ValidationHook(
        parts.validator, parts.prepare_batches or list, history, select_accuracy(parts.recipe)
    )


def select_accuracy(recipe: Recipe) -> str | None:
    """Return what validation counts: tokens, or right replies by the metric of the loss."""
    if recipe.loss.compares is not None:
        return f"{recipe.loss.name}/accuracy"
    return TOKENS if recipe.loss.modality == "tokens" else None


def build_samples_hook(parts: SourceParts, job: WorkerJob) -> SamplesHook | None:
    """Build the generation of samples, or return None if the recipe has no prompts."""
    run_dir, is_main_rank = job.resolved_path.parent, job.rank_info.is_main_rank
    if parts.recipe.model.modality == "images":
        images = build_image_sampler(
            parts.recipe, parts.engine, parts.collator, run_dir, is_main_rank=is_main_rank
        )
        return None if images is None else SamplesHook(images)
    texts = build_text_sampler(
        parts.recipe, parts.engine, parts.tokenizer, run_dir, is_main_rank=is_main_rank
    )
    return None if texts is None else SamplesHook(texts)


def build_checkpoint_schedule(recipe: Recipe) -> CheckpointSchedule:
    """Build the schedule of saves before the last step."""
    config = recipe.checkpoint
    return CheckpointSchedule(
        config.interval,
        saves_first_step=config.enable_first_step_checkpoint,
        broadcast=broadcast_bool,
    )


def apply_train_timeout(recipe: Recipe, meshes: ParallelMeshes | None) -> None:
    """Lower the collective timeout to `comm.train_timeout_seconds` after the first step."""
    if meshes is not None:
        set_pg_timeout(recipe.comm.train_timeout_seconds)


def build_nonfinite_guard(recipe: Recipe, device: torch.device) -> NonFiniteGuard:
    """Build the check of each step's loss and gradient norm."""
    section = recipe.guard
    # the loss of a policy is always near 0, so its spikes mean nothing
    detector = LossSpikeDetector(
        section.spike_sigmas,
        section.spike_window,
        quantity="grad_norm" if recipe.kind == "rl" else "loss",
    )
    return NonFiniteGuard(
        section.non_finite, device, detector, is_enabled=recipe.comm.mode == "default"
    )


def build_watchdog(recipe: Recipe, job: WorkerJob) -> Watchdog:
    """Build the watchdog that ends this rank when it hangs."""
    return Watchdog(recipe.guard, partial(end_hung_rank, job))


def describe_sequences(
    parts: SourceParts, report: NonFiniteReport, inp: StepInput
) -> dict[str, Any]:
    """Return the sequences of the step, and those that were non-finite.

    They are described by sample numbers, or by token ids for RL.
    """
    bad = report.nonfinite_sequences
    if parts.rollouts is not None:
        return {
            "bad_rows": bad,
            "bad_rollouts": collect_token_ids(cast(list[TokenBatch], inp.batches), bad),
        }
    indices = parts.dataloader.last_indices()
    return {"rows": indices, "bad_rows": [indices[row] for row in bad]}


def write_nonfinite_report(
    parts: SourceParts, job: WorkerJob, report: NonFiniteReport, inp: StepInput
) -> None:
    """Write logs/non-finite-step-N-rank-R.json.

    A failed write is only logged, because training does not depend on the report.
    """
    values = report.values
    norms = {
        name: norm if math.isfinite(norm) else str(norm) for name, norm in report.grad_norms.items()
    }
    content: dict[str, Any] = {
        "step": values.step,
        "rank": job.rank_info.rank,
        "policy": parts.recipe.guard.non_finite,
        "loss": str(values.loss),
        "grad_norm": str(values.grad_norm),
        **describe_sequences(parts, report, inp),
        "first_bad_module": report.first_nonfinite_module,
        "bad_gradients": [name for name, norm in norms.items() if isinstance(norm, str)],
        "gradient_norms": norms,
        "weights": f"after {pluralize(report.num_later_updates, 'further update')}"
        if report.num_later_updates
        else "of the step",
    }
    name = f"non-finite-step-{values.step}-{job.rank_info.file_stem}.json"
    path = job.resolved_path.parent / "logs" / name
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("cannot write %s: %s", path, error.strerror)
        return
    log.warning(
        "%s is not finite at step %d: details are in %s", values.nonfinite_name, values.step, path
    )


def end_hung_rank(job: WorkerJob, hang: Hang) -> NoReturn:
    """Write the stacks of all threads of this rank and end the process.

    The hung thread cannot do so itself. A rank that does not answer is named instead of this one.
    """
    run_dir, place = job.resolved_path.parent, job.rank_info
    stacks = dump_stacks(run_dir / "logs" / f"stacks-{place.file_stem}.txt")
    # the others hang because of it, and cannot know it without asking
    silent = [] if job.heartbeats is None else job.heartbeats.find_silent_ranks()
    message = f"error[hang]: {format_hang(hang, place.rank, silent)}; its stacks are in {stacks}"
    if place.world_size > 1 and (collectives := dump_flight_recorder(place)) is not None:
        message += f", its last collectives in {collectives}"
    if silent:
        message += f"\n  = help: {HELP_SILENT_RANK}"
    logging.getLogger(FAILURES_LOGGER).error("%s", message)
    if place.failure_file is not None:
        write_indented_json(
            place.failure_file,
            {
                "time": time.time(),
                "is_of_another": False,
                "rank": silent[0] if silent else place.rank,
                "text": message,
                "exit_code": EXIT_HANG,
            },
        )
    status = read_json_or_empty(run_dir / STATUS)
    if place.is_main_rank and place.group is None and status:
        write_indented_json(run_dir / STATUS, {**status, "state": "failed", "exit_code": EXIT_HANG})
    if place.world_size > 1:
        time.sleep(HANG_REPORT_SECONDS)
    if job.heartbeats is not None:
        job.heartbeats.end()
    drain_console()
    os._exit(EXIT_HANG)


def format_hang(hang: Hang, rank: int, silent_ranks: list[int]) -> str:
    """Format which rank hangs, in what, and which limit it exceeds."""
    doing = {
        "build": "building the run",
        "first step": "the first step",
        "step": f"the step after step {hang.step}",
        "save": "saving a checkpoint",
    }
    limit = (
        f"guard.{hang.phase.replace(' ', '_')}_timeout_seconds"
        if hang.last_save_seconds is None
        else f"{hang.limit:.0f} s (the last save took {hang.last_save_seconds:.0f} s)"
    )
    what = f"{doing[hang.phase]} takes longer than {limit}"
    if silent_ranks:
        return f"{format_silent_ranks(silent_ranks)}; rank {rank} waits: {what}"
    return f"rank {rank} hangs: {what}"


def dump_stacks(path: Path) -> Path:
    """Write the stacks of all threads of this process and return the path."""
    with path.open("w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    return path
