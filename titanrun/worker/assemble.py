"""Builds a run from its recipe, in an order that can be read: ranks, data, model, layout, optimizer, checkpoints, metrics."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from titanrun.components.data.batch import BatchMaker
from titanrun.components.data.documents import Marking
from titanrun.components.data.loader import RowLoader
from titanrun.components.metrics.recorder import Recorder
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.components.validation.validator import Validators
from titanrun.distributed.device import device_name, emulates_bfloat16, find_device
from titanrun.distributed.liveness import heard_by, sign_of_life
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.precision import Precision, precision_named
from titanrun.distributed.processes import first_alone, first_decides, set_timeout
from titanrun.distributed.seeds import seed_everything, use_deterministic_kernels
from titanrun.models.shared.counting import parameter_count
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_dir import record_decisions
from titanrun.training.agreed_signals import AgreedSignals
from titanrun.training.engine import Engine
from titanrun.training.garbage import GarbageCollection
from titanrun.training.samples import PictureSamples, Samples
from titanrun.training.save_times import SaveTimes
from titanrun.training.signals import SignalRequests
from titanrun.training.state import TrainState
from titanrun.training.trainer import Plan, Trainer
from titanrun.worker.build_checkpoints import begin, build_checkpoints, writes
from titanrun.worker.build_data import (
    Share,
    build_batches,
    build_loader,
    build_marking,
    build_tokenizer,
    build_validator,
    pinning,
)
from titanrun.worker.build_guard import build_watchdog, guards
from titanrun.worker.build_metrics import build_metric_log, build_throughput
from titanrun.worker.build_model import (
    build_engine,
    build_model,
    lay_out,
    lives_on_host,
    materialise,
    refuse_attention,
    refuse_unclaimed,
)
from titanrun.worker.build_profiling import profiled
from titanrun.worker.build_reference import build_reference
from titanrun.worker.build_samples import build_pictures, build_samples
from titanrun.worker.company import company, decisions
from titanrun.worker.converters import convert, refuse_idle, refuse_missing_kernels, tell
from titanrun.worker.job import Job
from titanrun.worker.length import length_words, refuse_fewer_epochs, steps_of, with_length
from titanrun.worker.machine import machine

log = logging.getLogger(__name__)


@contextmanager
def assembled(
    recipe: Recipe,
    job: Job,
    *,
    signals: SignalRequests,
    on_step: Callable[[int], None] = lambda step: None,
) -> Iterator[Trainer]:
    """The trainer of a run, where its latest checkpoint left it or with its first weights.

    Args:
        recipe: the run that the job describes.
        job: where the run's files are, and which process of the run this is.
        signals: requests to stop or save, already listened for.
        on_step: called with the number of each step done.
    """
    device = find_device(recipe.device, local_rank=job.place.local_rank)
    with (
        build_watchdog(recipe, job) as watchdog,
        heard_by(watchdog.beat),
        company(recipe, job, device) as meshes,
    ):
        settle_chance(recipe)
        data = build_data(
            recipe,
            job,
            device,
            Share() if meshes is None else Share(meshes.batch_rank, meshes.degrees.batch),
        )
        recipe = with_length(recipe, rows=data.rows.row_count)
        build = partial(build_whole_engine, recipe, device, meshes, data.marking)
        engine, state = build(), TrainState()
        checkpoints = build_checkpoints(recipe, job, engine=engine, rows=data.rows, state=state)
        begin(recipe, checkpoints)
        refuse_fewer_epochs(recipe, done=state.step)
        announce(recipe, job, device, meshes, rows=data.rows.row_count)
        with (
            torch.autograd.set_detect_anomaly(recipe.debug.detect_anomaly),
            closing(data),
            closing(checkpoints),
            build_metric_log(recipe, job, first_step=state.step) as metrics,
            # ranks that are done wait for the first one's files
            closing(watchdog),
            profiled(recipe, job, device, first_step=state.step) as after_step,
        ):
            yield Trainer(
                engine=engine,
                state=state,
                plan=build_plan(recipe, stop_after=job.place.stop_after),
                metrics=metrics,
                recorder=Recorder(device),
                throughput=build_throughput(recipe, device, meshes),
                garbage=GarbageCollection(recipe.training),
                save_times=build_save_times(recipe),
                signals=signals if meshes is None else AgreedSignals(signals, device),
                **data.of_trainer(),
                checkpoints=checkpoints if writes(recipe.checkpoint) else None,
                on_step=on_step,
                prepare=build_reference(recipe, engine, checkpoints.ranks, build),
                watchdog=watchdog,
                **guards(recipe, job, data.rows, engine),
                on_first_step=partial(shorten_patience, recipe, meshes),
                on_step_end=with_samples(
                    recipe, job, engine, after_step, tokenizer=data.tokenizer, batches=data.batches
                ),
            )


def with_samples(
    recipe: Recipe,
    job: Job,
    engine: Engine,
    after_step: Callable[[int], None],
    *,
    tokenizer: Tokenizer | None,
    batches: Any = None,
) -> Callable[[int], None]:
    """What follows a step, with the texts or pictures that the recipe asks for before it. Pictures take the encoders of `batches`."""
    samples: Samples | PictureSamples | None
    if recipe.model.takes == "images":
        samples = build_pictures(
            recipe, engine, batches, job.resolved.parent, is_first=job.place.is_first
        )
    else:
        samples = build_samples(
            recipe, engine, tokenizer, job.resolved.parent, is_first=job.place.is_first
        )
    if samples is None:
        return after_step

    def follow(step: int) -> None:
        samples.after_step(step)
        after_step(step)

    return follow


def settle_chance(recipe: Recipe) -> None:
    """What is drawn follows from the seed, and what is computed from what is drawn, where the recipe wants that."""
    seed_everything(recipe.debug.seed)
    if recipe.debug.deterministic:
        use_deterministic_kernels(warn_only=recipe.debug.deterministic_warn_only)


def build_whole_engine(
    recipe: Recipe, device: torch.device, meshes: Meshes | None, marking: Marking
) -> Engine:
    """The model, laid out and with its first weights, and what trains it."""
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    refuse_missing_kernels(recipe, device)
    refuse_attention(recipe, device, precision)
    model = build_model(recipe, precision)
    conversions = convert(recipe, model, meshes=meshes)
    refuse_idle(recipe, model, conversions)
    refuse_unclaimed(recipe, model)
    tell(recipe, model, conversions)
    layout = lay_out(recipe, model, meshes=meshes, precision=precision)
    materialise(model, device=device, seed=recipe.debug.seed, offload=lives_on_host(recipe, meshes))
    sign_of_life()
    engine = build_engine(recipe, model, layout, device=device, meshes=meshes, marking=marking)
    for conversion in conversions:
        if conversion.on_new_weights is not None:
            engine.on_new_weights(partial(conversion.on_new_weights, model))
    return engine


@dataclass(frozen=True, slots=True)
class Data:
    """This rank's share of the training rows and of the held-out ones, what makes batches of them and numbers the documents in these."""

    rows: RowLoader
    batches: BatchMaker
    validator: Validators | None
    marking: Marking
    tokenizer: Tokenizer | None = None

    def of_trainer(self) -> dict[str, Any]:
        """What the loop takes of it."""
        return {"rows": self.rows, "batches": self.batches, "validator": self.validator}

    def close(self) -> None:
        """End the processes that read rows ahead."""
        self.rows.close()
        if self.validator is not None:
            self.validator.close()


def build_data(recipe: Recipe, job: Job, device: torch.device, share: Share) -> Data:
    """The data of this rank; what is prepared in files, the first rank prepares."""
    with first_alone(job.store, job.place, "data"):
        tokenizer = build_tokenizer(recipe)
        rows = build_loader(recipe, tokenizer, job.resolved.parent, share)
        batches = build_batches(recipe, device)
        held_out = pinning(batches, recipe.validation.dataloader, device)
        validator = build_validator(recipe, tokenizer, job.resolved.parent, share, held_out)
        marking = build_marking(recipe, tokenizer)
    sign_of_life()
    return Data(
        rows, pinning(batches, recipe.training.dataloader, device), validator, marking, tokenizer
    )


def build_save_times(recipe: Recipe) -> SaveTimes:
    """When the run is saved before its end."""
    config = recipe.checkpoint
    return SaveTimes(
        config.interval, after_first=config.enable_first_step_checkpoint, agreed=first_decides
    )


def build_plan(recipe: Recipe, *, stop_after: int | None) -> Plan:
    """The numbers that steer the loop."""
    training = recipe.training
    assert training.global_batch_size != "auto"
    return Plan(
        steps=steps_of(recipe),
        rows_per_pass=training.local_batch_size,
        tokens_per_row=training.seq_len,
        tokens_per_step=training.global_batch_size * training.seq_len,
        log_every=recipe.metrics.log_freq,
        stop_after=stop_after,
    )


def shorten_patience(recipe: Recipe, meshes: Meshes | None) -> None:
    """After the first step, and all that is compiled for it, ranks wait for each other no longer than they should."""
    if meshes is not None:
        set_timeout(recipe.comm.train_timeout_seconds)


def announce(
    recipe: Recipe, job: Job, device: torch.device, meshes: Meshes | None, *, rows: int
) -> None:
    """The first rank says what is about to train, and writes down what only this machine could decide."""
    if job.place.is_first:
        introduce(recipe, job, device, rows=rows)
        record_decisions(
            job.resolved.parent,
            decisions(device, meshes) | {"steps": steps_of(recipe)},
            machine(device),
        )


def introduce(recipe: Recipe, job: Job, device: torch.device, *, rows: int) -> None:
    """Says what is about to train, and what will make it slow."""
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    if recipe.description:
        log.info("%s", recipe.description)
    if recipe.debug.print_config:
        log.info("%s", job.text.rstrip())
    if precision.compute == torch.bfloat16 and emulates_bfloat16(device):
        field = compute_field(precision)
        log.warning(
            "this CPU has no bf16 arithmetic and emulates it, many times slower: set %s: float32",
            field,
        )
    log.info(
        "%s: %s parameters in %s on %s; %s",
        f"{recipe.model.name} {recipe.model.flavor or ''}".rstrip(),
        f"{parameter_count(recipe.model):,}",
        recipe.training.dtype,
        device_name(device),
        length_words(recipe, rows=rows),
    )


def compute_field(precision: Precision) -> str:
    """The field that decides what matrix products run in: weights that are not stored in fp32 compute in their own dtype."""
    return (
        "training.mixed_precision_param" if precision.storage == torch.float32 else "training.dtype"
    )
