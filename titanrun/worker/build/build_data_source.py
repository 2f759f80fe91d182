"""Builder of the step source of pretraining and fine-tuning."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

import torch

from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.components.data.sample_loader import SampleLoader
from titanrun.components.data.token_collator import Collator
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.components.validation.validator import ValidatorGroup
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import main_rank_first
from titanrun.recipe.recipe import Recipe
from titanrun.training.data_source import DataSource
from titanrun.training.train_state import TrainState
from titanrun.worker.build.build_checkpoints import build_checkpoint_manager, load_initial_state
from titanrun.worker.build.build_data import (
    DataParallelRank,
    build_collator,
    build_dataloader,
    build_document_id_fn,
    build_tokenizer,
    build_validator,
    enable_pin_memory,
)
from titanrun.worker.build.build_engine import build_engine, set_determinism
from titanrun.worker.build.build_loss_inputs import build_loss_inputs
from titanrun.worker.build.build_stream_loader import (
    build_stream_loader,
    collect_plan_files,
    log_training_streams,
    new_stream_group,
    plan_training_streams,
)
from titanrun.worker.build.epochs_to_steps import (
    check_epochs_not_reduced,
    get_global_batch_size,
    resolve_epochs,
)
from titanrun.worker.build.run_start_log import log_run_start
from titanrun.worker.build.source_parts import SourceParts
from titanrun.worker.worker_job import WorkerJob


def build_data_source(
    recipe: Recipe,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    exit_stack: ExitStack,
) -> SourceParts:
    """Build data, engine and checkpoints, load the state, and log the start.

    The state is the initial or the resumed state.
    """
    set_determinism(recipe)
    rank = DataParallelRank()
    if meshes is not None:
        rank = DataParallelRank(meshes.dp_rank, meshes.parallel_dims.dp_size)
    data = exit_stack.enter_context(closing(build_data(recipe, job, device, rank)))
    loader, num_samples = data.dataloader, data.dataloader.num_samples
    recipe = resolve_epochs(recipe, num_samples=num_samples)
    build = partial(build_engine, device=device, meshes=meshes, document_id_fn=data.document_id_fn)
    engine, state = build(recipe), TrainState()
    checkpoints = build_checkpoint_manager(
        recipe, job, engine=engine, dataloader=loader, state=state, data_files=data.plan_files
    )
    exit_stack.enter_context(closing(checkpoints))
    load_initial_state(recipe, checkpoints)
    check_epochs_not_reduced(recipe, steps_done=state.step)
    log_run_start(recipe, job, device, meshes, num_samples=num_samples, engine=engine)
    prepare_batches = build_loss_inputs(recipe, engine, checkpoints.rank_group, build)
    return SourceParts(
        recipe=recipe,
        source=DataSource(
            dataloader=loader,
            collator=data.collator,
            local_batch_size=recipe.training.local_batch_size,
            seq_len=recipe.training.seq_len,
            tokens_per_step=get_global_batch_size(recipe) * recipe.training.seq_len,
        ),
        engine=engine,
        state=state,
        checkpoints=checkpoints,
        dataloader=loader,
        tokenizer=data.tokenizer,
        collator=data.collator,
        prepare_batches=prepare_batches,
        validator=data.validator,
    )


@dataclass(frozen=True, slots=True)
class TrainData:
    """Training and validation data of this rank, with collator and document ids.

    `plan_files` are those that checkpoints hold, by name.
    """

    dataloader: SampleLoader
    collator: Collator
    validator: ValidatorGroup | None
    document_id_fn: DocumentIdFn
    tokenizer: Tokenizer | None = None
    plan_files: Mapping[str, bytes] = field(default_factory=dict)

    def close(self) -> None:
        """Stop the processes that read ahead."""
        self.dataloader.close()
        if self.validator is not None:
            self.validator.close()


def build_data(
    recipe: Recipe, job: WorkerJob, device: torch.device, data_parallel_rank: DataParallelRank
) -> TrainData:
    """Build the data of this rank.

    The main rank prepares files before the other ranks open them.
    """
    run_dir = job.resolved_path.parent
    ranks = new_stream_group(recipe)
    plans = plan_training_streams(recipe, ranks)
    if job.rank_info.is_main_rank:
        log_training_streams(recipe, plans)
    with main_rank_first(job.store, job.rank_info, "data"):
        tokenizer = build_tokenizer(recipe)
        dataloader: SampleLoader
        if plans:
            assert tokenizer is not None, "a rule asks for one"
            dataloader = build_stream_loader(
                recipe, tokenizer, run_dir, data_parallel_rank, ranks, plans
            )
        else:
            dataloader = build_dataloader(recipe, tokenizer, run_dir, data_parallel_rank)
        collator = build_collator(recipe, device)
        validation_collator = enable_pin_memory(collator, recipe.validation.dataloader, device)
        validator = build_validator(
            recipe, tokenizer, run_dir, data_parallel_rank, validation_collator
        )
        document_id_fn = build_document_id_fn(recipe, tokenizer)
    send_heartbeat()
    return TrainData(
        dataloader,
        enable_pin_memory(collator, recipe.training.dataloader, device),
        validator,
        document_id_fn,
        tokenizer,
        collect_plan_files(plans),
    )
