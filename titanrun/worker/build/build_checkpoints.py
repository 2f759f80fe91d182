"""Construction of the checkpoint manager, and loading of a run's initial state.

A run starts from its own checkpoint, another run's state, weights from elsewhere, or its initial
weights.
"""

import logging
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.async_save import AsyncSaver, StagingBuffer
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.commit import check_can_be_folder
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.checkpoints.writer_process import WriterProcess
from titanrun.config.base import dump_config
from titanrun.config.checksum import to_yaml_with_checksum
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.device import get_device_name
from titanrun.distributed.object_collectives import (
    RankGroup,
    join_companion_group,
    new_file_io_group,
)
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import escape_recipe_data, load_resolved_text
from titanrun.recipe.rules.initial_adapters import (
    INITIAL_LOAD,
    compare_with_source,
    uses_reference,
)
from titanrun.recipe.rules.registry import RuleViolation
from titanrun.recipe.rundir.checkpoint_lookup import (
    fetch_resolved_recipe,
    locate_checkpoint_folder,
)
from titanrun.recipe.rundir.run_identity import RunIdentity, read_run_id
from titanrun.training.checkpoint_manager import CheckpointManager, Stateful, StatefulDataLoader
from titanrun.training.engine import Engine
from titanrun.training.train_state import TrainState
from titanrun.worker.build.build_stream_loader import keep_saved_plans
from titanrun.worker.build.epochs_to_steps import get_num_steps
from titanrun.worker.weights.initial_weights import (
    get_checkpoint,
    get_initial_checkpoint,
    load_initial_weights,
)
from titanrun.worker.weights.saved_tokenizer import collect_assets
from titanrun.worker.worker_job import WorkerJob

log = logging.getLogger(__name__)


def build_checkpoint_manager(
    recipe: Recipe,
    job: WorkerJob,
    *,
    engine: Engine,
    dataloader: StatefulDataLoader,
    state: TrainState,
    rl_state: Stateful | None = None,
    data_files: Mapping[str, bytes] | None = None,
) -> CheckpointManager:
    """Build the manager that saves and resumes the run. The caller must close it.

    `data_files` are files of the data that checkpoints hold, by name.
    """
    config = recipe.checkpoint
    in_background = config.async_mode != "disabled" and is_saving_enabled(config)
    store = CheckpointStore(
        folder=locate_checkpoint_folder(job.resolved_path.parent, config.folder),
        retention=RetentionPolicy(config.keep_latest_k, config.keep_every, config.keep_best),
        ranks=new_file_io_group(),
    )
    run_dir = job.resolved_path.parent
    if config.enable:
        store.ranks.broadcast_from_main(lambda: check_can_be_folder(store.folder))
    run_id = store.ranks.broadcast_from_main(lambda: read_run_id(run_dir))
    text = clear_load_step(job.resolved_text)
    is_main = job.rank_info.is_main_rank
    return CheckpointManager(
        config=config,
        store=store,
        engine=engine,
        dataloader=dataloader,
        train_state=state,
        resolved_text=text,
        layout=describe_layout(recipe, engine),
        async_saver=build_async_save(config, store, job.rank_info) if in_background else None,
        trainer_state=rl_state,
        run_id=run_id,
        assets={**collect_assets(recipe), **(data_files or {})}
        if is_saving_enabled(config) and is_main
        else {},
        keep_data_files=partial(keep_saved_plans, run_dir),
        check_owner=RunIdentity(run_id, text).check_owner,
    )


def describe_layout(recipe: Recipe, engine: Engine) -> dict[str, Any]:
    """Return the device of the ranks and how they split the model, for manifests."""
    return {"device": get_device_name(engine.device), **dump_config(recipe.parallelism)}


def clear_load_step(resolved_text: str) -> str:
    """Return a resolved recipe without `load_step`, as checkpoints store it.

    With a step to resume from, the recipe could not start a new run.
    """
    run = load_resolved_text(resolved_text)
    if run.checkpoint.load_step is None:
        return resolved_text
    data = escape_recipe_data(run, dump_config(run))
    return to_yaml_with_checksum({**data, "checkpoint": {**data["checkpoint"], "load_step": None}})


def build_async_save(
    config: CheckpointConfig, store: CheckpointStore, rank_info: RankInfo
) -> AsyncSaver:
    """Build the background saver: a thread, or a separate process."""
    if config.async_mode == "async":
        return AsyncSaver(store.save, StagingBuffer())
    stage = StagingBuffer(is_shared=True)
    # a name that no earlier start of this run has used, because torchrun's store outlives a restart
    name = store.ranks.broadcast_from_main(lambda: f"checkpoint-writers-{secrets.token_hex(8)}")
    meet = RankGroup if store.ranks.size == 1 else partial(join_companion_group, rank_info, name)
    writer = WriterProcess(store.folder, store.retention, stage, meet)
    return AsyncSaver(writer.save, stage, writer.close)


def is_saving_enabled(config: CheckpointConfig) -> bool:
    """Return whether the run saves checkpoints."""
    return config.enable and not config.load_only


def load_initial_state(recipe: Recipe, checkpoints: CheckpointManager) -> None:
    """Resume from the run's own checkpoint, else load the recipe's initial state."""
    config = recipe.checkpoint
    is_random = not config.initial_load_in_hf and config.initial_load_path is None
    if config.adapters_only:
        # the weights that checkpoints leave out
        load_initial_weights(
            config,
            model_config=recipe.model,
            engine=checkpoints.engine,
            ranks=checkpoints.rank_group,
            seed=recipe.debug.seed,
        )
    if config.enable and checkpoints.resume(last_step=get_num_steps(recipe)):
        return
    if is_random:
        log.info("starting from random weights")
    check_initial_adapters(recipe, checkpoints.rank_group)
    if config.initial_load_path is not None and not config.initial_load_model_only:
        checkpoints.restore(get_initial_checkpoint(config, checkpoints.rank_group))
    elif not config.adapters_only:
        load_initial_weights(
            config,
            model_config=recipe.model,
            engine=checkpoints.engine,
            ranks=checkpoints.rank_group,
            seed=recipe.debug.seed,
        )


def check_initial_adapters(recipe: Recipe, ranks: RankGroup) -> None:
    """Refuse a checkpoint whose adapters would be missing in the reference of the run.

    `validate` refuses it for a folder. Only here is a checkpoint at an address read.

    Raises:
        ProblemsFound: the checkpoint has such adapters.
    """
    config = recipe.checkpoint
    if config.initial_load_path is None or config.initial_load_in_hf or not uses_reference(recipe):
        return
    named = parse_storage_path(config.initial_load_path)

    def find_conflict() -> RuleViolation | None:
        folder = get_checkpoint(named, config.folder).folder
        return compare_with_source(recipe, Path(fetch_resolved_recipe(folder)))

    conflict = ranks.broadcast_from_main(find_conflict)
    if conflict is not None:
        rule = "adapters-are-merged-first"
        raise ProblemsFound(
            [Problem("conflict", conflict.message, INITIAL_LOAD, rule=rule, hint=conflict.hint)]
        )
