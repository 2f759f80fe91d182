"""What saves a run, and what it starts from: its own checkpoint, another run's state, weights from elsewhere, or its first weights."""

import secrets
from functools import partial

from titanrun.components.checkpoints.background import BackgroundSaves, Stage
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.components.checkpoints.writer_process import WriterProcess
from titanrun.config.base import dump
from titanrun.config.signature import signed
from titanrun.distributed.agreement import Ranks, ranks_beside, ranks_met_again
from titanrun.distributed.environment import Place
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import read_resolved_text, written
from titanrun.recipe.saved import folder_in
from titanrun.training.engine import Engine
from titanrun.training.run_checkpoints import DataPlace, RunCheckpoints, Saved
from titanrun.training.state import TrainState
from titanrun.worker.job import Job
from titanrun.worker.length import steps_of
from titanrun.worker.weights import load_initial_weights, named_checkpoint


def build_checkpoints(
    recipe: Recipe,
    job: Job,
    *,
    engine: Engine,
    rows: DataPlace,
    state: TrainState,
    progress: Saved | None = None,
) -> RunCheckpoints:
    """What saves and resumes the run. Close it at the end."""
    config = recipe.checkpoint
    in_background = config.async_mode != "disabled" and writes(config)
    store = CheckpointStore(
        folder=folder_in(job.resolved.parent, config.folder),
        retention=Retention(config.keep_latest_k, config.keep_every, config.keep_best),
        ranks=ranks_beside(),
    )
    return RunCheckpoints(
        config=config,
        store=store,
        engine=engine,
        rows=rows,
        state=state,
        resolved=from_its_beginning(job.text),
        parallelism=dump(recipe.parallelism),
        background=build_background(config, store, job.place) if in_background else None,
        progress=progress,
    )


def from_its_beginning(text: str) -> str:
    """A resolved recipe as checkpoints hold it: wherever it is trained it starts the run, which a step to go on from would keep it from."""
    run = read_resolved_text(text)
    if run.checkpoint.load_step is None:
        return text
    data = written(run, dump(run))
    return signed({**data, "checkpoint": {**data["checkpoint"], "load_step": None}})


def build_background(
    config: CheckpointConfig, store: CheckpointStore, place: Place
) -> BackgroundSaves:
    """A thread, or a process of its own, that writes."""
    if config.async_mode == "async":
        return BackgroundSaves(store.save, Stage())
    stage = Stage(is_shared=True)
    # a name that no earlier start of this run has used: the store of torchrun outlives a restart
    name = store.ranks.from_first(lambda: f"checkpoint-writers-{secrets.token_hex(8)}")
    meet = Ranks if store.ranks.count == 1 else partial(ranks_met_again, place, name)
    writer = WriterProcess(store.folder, store.retention, stage, meet)
    return BackgroundSaves(writer.save, stage, writer.close)


def writes(config: CheckpointConfig) -> bool:
    """Whether the run saves anything."""
    return config.enable and not config.load_only


def begin(recipe: Recipe, checkpoints: RunCheckpoints) -> None:
    """Puts the run where its own checkpoint left it, else where the recipe says that it starts."""
    config = recipe.checkpoint
    if config.adapters_only:
        # what checkpoints leave out
        load_initial_weights(
            config,
            model_config=recipe.model,
            engine=checkpoints.engine,
            ranks=checkpoints.ranks,
            seed=recipe.debug.seed,
        )
    if config.enable and checkpoints.resume(steps=steps_of(recipe)):
        return
    if config.initial_load_path is not None and not config.initial_load_model_only:
        checkpoints.restore(named_checkpoint(config, checkpoints.ranks))
    elif not config.adapters_only:
        load_initial_weights(
            config,
            model_config=recipe.model,
            engine=checkpoints.engine,
            ranks=checkpoints.ranks,
            seed=recipe.debug.seed,
        )
