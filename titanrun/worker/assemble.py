"""Builds a run from its recipe, in an order that can be read: device, data, model, optimizer, checkpoints, metrics."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from titanrun.components.checkpoints.store import CheckpointStore, Retention
from titanrun.components.data.loader import RowLoader
from titanrun.components.metrics.recorder import Recorder
from titanrun.config.base import dump
from titanrun.config.problems import fail
from titanrun.distributed.agreement import current_ranks
from titanrun.distributed.device import device_name, emulates_bfloat16, find_device
from titanrun.distributed.environment import Place
from titanrun.distributed.precision import Precision, precision_named
from titanrun.distributed.seeds import seed_everything, use_deterministic_kernels
from titanrun.models.shared.config import decided
from titanrun.models.shared.counting import parameter_count
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.run_dir import record_decisions
from titanrun.training.engine import Engine
from titanrun.training.garbage import GarbageCollection
from titanrun.training.run_checkpoints import RunCheckpoints
from titanrun.training.save_times import SaveTimes
from titanrun.training.signals import SignalRequests
from titanrun.training.state import TrainState
from titanrun.training.trainer import Plan, Trainer
from titanrun.worker.build_data import build_loader, build_tokenizer, build_validator
from titanrun.worker.build_metrics import build_metric_log, build_throughput
from titanrun.worker.build_model import build_engine, build_model, materialise
from titanrun.worker.length import length_words, refuse_fewer_epochs, steps_of, with_length
from titanrun.worker.weights import load_initial_weights

log = logging.getLogger(__name__)


@contextmanager
def assembled(
    recipe: Recipe, resolved: Path, *, place: Place, signals: SignalRequests, on_step: Callable[[int], None] = lambda step: None
) -> Iterator[Trainer]:
    """The trainer of a run, where its latest checkpoint left it or with its first weights.

    Args:
        recipe: the run that `resolved` holds.
        resolved: path of resolved.yaml in the run directory.
        place: which process of the run this is.
        signals: requests to stop or save, already listened for.
        on_step: called with the number of each step done.
    """
    run_dir = resolved.parent
    refuse_company(place)
    device = find_device(recipe.device, local_rank=place.local_rank)
    seed_everything(recipe.debug.seed)
    if recipe.debug.deterministic:
        use_deterministic_kernels(warn_only=recipe.debug.deterministic_warn_only)
    tokenizer = build_tokenizer(recipe)
    rows = build_loader(recipe, tokenizer, run_dir)
    recipe = with_length(recipe, rows=rows.row_count)
    validator = build_validator(recipe, tokenizer, run_dir)
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    model = build_model(recipe, precision)
    materialise(model, device=device, seed=recipe.debug.seed)
    engine = build_engine(recipe, model, device=device, precision=precision)
    state = TrainState()
    checkpoints = build_checkpoints(recipe, resolved, engine=engine, rows=rows, state=state)
    if checkpoints is None or not checkpoints.resume(steps=steps_of(recipe)):
        load_initial_weights(recipe.checkpoint, model_config=recipe.model, engine=engine)
    refuse_fewer_epochs(recipe, done=state.step)
    introduce(recipe, resolved, device, precision, rows=rows.row_count)
    record_decisions(run_dir, decisions(recipe, device, place))
    finding_nan = torch.autograd.set_detect_anomaly(recipe.debug.detect_anomaly)
    with finding_nan, closing(build_metric_log(recipe, run_dir, first_step=state.step)) as metrics:
        yield Trainer(
            engine=engine,
            rows=rows,
            state=state,
            plan=build_plan(recipe),
            metrics=metrics,
            recorder=Recorder(device),
            throughput=build_throughput(recipe, device),
            garbage=GarbageCollection(recipe.training),
            save_times=SaveTimes(recipe.checkpoint.interval),
            signals=signals,
            validator=validator,
            checkpoints=checkpoints,
            on_step=on_step,
        )


def refuse_company(place: Place) -> None:
    """Raises ProblemsFound in one of several processes: each would train alone, and write over the others' files."""
    if place.world_size > 1:
        message = f"this is rank {place.rank} of {place.world_size}, and training on more than one process is not built yet"
        raise fail("not-built", message, help="start one process: launch.nproc_per_node: 1, no torchrun")


def build_checkpoints(recipe: Recipe, resolved: Path, *, engine: Engine, rows: RowLoader, state: TrainState) -> RunCheckpoints | None:
    """What saves and resumes the run, if the recipe wants that."""
    config = recipe.checkpoint
    if not config.enable:
        return None
    store = CheckpointStore(folder=resolved.parent / config.folder, retention=Retention(config.keep_latest_k), ranks=current_ranks())
    return RunCheckpoints(
        config=config,
        store=store,
        engine=engine,
        rows=rows,
        state=state,
        resolved=resolved.read_text(encoding="utf-8"),
        parallelism=dump(recipe.parallelism),
    )


def build_plan(recipe: Recipe) -> Plan:
    """The numbers that steer the loop."""
    training = recipe.training
    assert training.global_batch_size != "auto"
    return Plan(
        steps=steps_of(recipe),
        rows_per_pass=training.local_batch_size,
        tokens_per_step=training.global_batch_size * training.seq_len,
        vocab_size=decided(recipe.model.vocab_size),
        log_every=recipe.metrics.log_freq,
    )


def decisions(recipe: Recipe, device: torch.device, place: Place) -> dict[str, object]:
    """What the recipe leaves to the machine and to the data."""
    return {"device": str(device), "device_name": device_name(device), "ranks": place.world_size, "steps": steps_of(recipe)}


def introduce(recipe: Recipe, resolved: Path, device: torch.device, precision: Precision, *, rows: int) -> None:
    """Says what is about to train, and what will make it slow."""
    if recipe.description:
        log.info("%s", recipe.description)
    if recipe.debug.print_config:
        log.info("%s", resolved.read_text(encoding="utf-8").rstrip())
    if precision.compute == torch.bfloat16 and emulates_bfloat16(device):
        field = compute_field(precision)
        log.warning("this CPU has no bf16 arithmetic and emulates it, many times slower: set %s: float32", field)
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
    return "training.mixed_precision_param" if precision.storage == torch.float32 else "training.dtype"
