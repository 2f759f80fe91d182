"""Builder of the step source of RL."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.distributed.object_collectives import get_default_rank_group, new_file_io_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.process_group import main_rank_first
from titanrun.models.shared.config import AttentionConfig
from titanrun.recipe.recipe import Recipe
from titanrun.rl.algorithms.corrections import DropTokens
from titanrun.rl.config import RlConfig
from titanrun.rl.generators.generator_protocol import WeightUpdates
from titanrun.rl.generators.native_generator import NativeGenerator
from titanrun.rl.prompts.prompt_dataset import PromptDataset
from titanrun.rl.reference_model import ReferenceModel
from titanrun.rl.rollout_recorder import RolloutRecorder
from titanrun.rl.rollout_source import (
    AnyRolloutRunner,
    AnyWeightSync,
    RolloutLayout,
    RolloutSource,
)
from titanrun.rl.rollout_validation import RolloutValidator
from titanrun.rl.schedule_record import ScheduleRecorder
from titanrun.rl.schedule_replay import ScheduleRegeneration, ScheduleReplay
from titanrun.rl.state import RlState
from titanrun.training.engine import Engine
from titanrun.training.preference_inputs import PrepareBatchesFn, disable_adapters
from titanrun.training.runners.forward_backward import Loss
from titanrun.training.train_state import TrainState
from titanrun.worker.build.build_checkpoints import build_checkpoint_manager, load_initial_state
from titanrun.worker.build.build_data import build_dataset, build_document_id_fn, build_tokenizer
from titanrun.worker.build.build_engine import build_engine, set_determinism
from titanrun.worker.build.build_fleet import build_fleet
from titanrun.worker.build.build_reference import build_frozen_reference
from titanrun.worker.build.build_rollouts import (
    build_generator_resources,
    build_rollouts_and_weight_sync,
    get_generator_dtype,
    get_sent_names,
)
from titanrun.worker.build.build_teacher import build_teacher
from titanrun.worker.build.epochs_to_steps import check_epochs_not_reduced, resolve_epochs
from titanrun.worker.build.run_start_log import log_run_start
from titanrun.worker.build.source_parts import RolloutParts, SourceParts
from titanrun.worker.worker_job import WorkerJob


def build_rollout_source(
    recipe: Recipe,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    exit_stack: ExitStack,
) -> SourceParts:
    """Build the parts of an RL run, load the initial or resumed state, and log the start."""
    config = recipe.rl
    assert config is not None, "a rule requires it"
    set_determinism(recipe)
    prompts = build_prompt_data(recipe, config, job)
    tokenizer, dataloader = prompts.tokenizer, prompts.dataloader
    num_prompts = len(prompts.prompt_dataset)
    recipe = resolve_epochs(recipe, num_samples=num_prompts)
    engine = build_engine(recipe, device, meshes, build_document_id_fn(recipe, tokenizer))
    state, rl_state = TrainState(), RlState(config, engine)
    checkpoints = build_checkpoint_manager(
        recipe, job, engine=engine, dataloader=dataloader, state=state, rl_state=rl_state
    )
    exit_stack.callback(checkpoints.close)
    load_initial_state(recipe, checkpoints)
    check_epochs_not_reduced(recipe, steps_done=state.step)
    log_run_start(recipe, job, device, meshes, num_samples=num_prompts, engine=engine)
    source = open_rollout_source(
        recipe, config, job, device, meshes, exit_stack, prompts, engine, rl_state
    )
    return SourceParts(
        recipe=recipe,
        source=source,
        engine=engine,
        state=state,
        checkpoints=checkpoints,
        dataloader=dataloader,
        tokenizer=tokenizer,
        prepare_batches=chain_prepare_fns(
            build_reference_fn(recipe, config, engine, device, meshes, tokenizer),
            build_drop_fn(config, engine),
        ),
        rollouts=build_rollout_parts(config, job, source.runner, prompts, rl_state),
    )


def open_rollout_source(
    recipe: Recipe,
    config: RlConfig,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    exit_stack: ExitStack,
    prompts: "PromptData",
    engine: Engine,
    rl_state: RlState,
) -> RolloutSource:
    """Build the source of steps, and generation, which the exit stack closes."""
    tokenizer, recorder = prompts.tokenizer, build_schedule_recorder(config, job)
    runner, weight_sync = open_rollouts(
        recipe, config, job, device, meshes, tokenizer, exit_stack, recorder
    )
    return RolloutSource(
        config=config,
        layout=build_rollout_layout(recipe, config, meshes),
        engine=engine,
        loss=build_policy_loss(config, meshes),
        dataloader=prompts.dataloader,
        prompt_dataset=prompts.prompt_dataset,
        runner=runner,
        weight_sync=weight_sync,
        state=rl_state,
        max_prompts=get_max_prompts(recipe, len(prompts.prompt_dataset)),
        recorder=recorder,
        replay=build_schedule_replay(recipe, config, job, device, tokenizer),
    )


def open_rollouts(
    recipe: Recipe,
    config: RlConfig,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    tokenizer: Tokenizer,
    exit_stack: ExitStack,
    recorder: ScheduleRecorder | None,
) -> tuple[AnyRolloutRunner, AnyWeightSync]:
    """Build generation and weight synchronization, which the exit stack closes."""
    runner, weight_sync = (
        build_fleet(recipe, config, job, recorder)
        if config.fleet.processes
        else build_rollouts_and_weight_sync(recipe, config, job, device, meshes, tokenizer)
    )
    exit_stack.callback(runner.close)
    exit_stack.callback(weight_sync.transport.close)
    return runner, weight_sync


def build_schedule_recorder(config: RlConfig, job: WorkerJob) -> ScheduleRecorder | None:
    """Build the recorder of the completions of each step, or return None without one."""
    if not config.schedule.record:
        return None
    return ScheduleRecorder(job.resolved_path.parent if job.rank_info.is_main_rank else None)


def build_schedule_replay(
    recipe: Recipe, config: RlConfig, job: WorkerJob, device: torch.device, tokenizer: Tokenizer
) -> ScheduleReplay | None:
    """Build the replay of a recorded run, or return None without one."""
    path = config.schedule.replay
    if path is None:
        return None
    regeneration = None
    if config.schedule.replay_level == "schedule":
        regeneration = build_schedule_regeneration(
            Path(path), recipe, config, job, device, tokenizer
        )
    return ScheduleReplay(Path(path), regeneration)


def build_schedule_regeneration(
    folder: Path,
    recipe: Recipe,
    config: RlConfig,
    job: WorkerJob,
    device: torch.device,
    tokenizer: Tokenizer,
) -> ScheduleRegeneration:
    """Build the second generation of a recorded run in this folder."""

    def build_generator(resets_cache: bool) -> NativeGenerator:
        updates = WeightUpdates(take=lambda: None, resets_cache=resets_cache)
        resources = build_generator_resources(recipe, config, job, device, None, tokenizer, updates)
        generator = config.generator.load_builder()(config.generator, resources=resources)
        assert isinstance(generator, NativeGenerator), "a rule requires it"
        return generator

    return ScheduleRegeneration(
        folder=folder,
        build_generator=build_generator,
        seed=recipe.debug.seed,
        dtype=get_generator_dtype(recipe, config),
        parameter_names=get_sent_names(recipe),
        ranks=new_file_io_group(),
    )


def get_max_prompts(recipe: Recipe, num_prompts: int) -> int | None:
    """Return the number of prompts of the whole run.

    Return None if they repeat until the last step.
    """
    if recipe.training.epochs is not None:
        return recipe.training.epochs * num_prompts
    return None if recipe.training.dataset.repeat else num_prompts


def build_rollout_parts(
    config: RlConfig,
    job: WorkerJob,
    runner: AnyRolloutRunner,
    prompts: "PromptData",
    rl_state: RlState,
) -> RolloutParts:
    """Build the parts of an RL run that hooks use.

    The recorder writes on the main rank only.
    """
    folder = job.resolved_path.parent if job.rank_info.is_main_rank else None
    recorder = RolloutRecorder(config.recorder, folder)
    return RolloutParts(runner, recorder, prompts.build_validator(config, rl_state))


def build_policy_loss(config: RlConfig, meshes: ParallelMeshes | None) -> Loss:
    """Build the loss of the algorithm."""
    loss: Loss = config.algorithm.load_builder()(
        config.algorithm,
        sampling_temperature=config.sampling.temperature,
        cp_group=None if meshes is None else meshes.get_group("cp"),
    )
    return loss


@dataclass(frozen=True, slots=True)
class PromptData:
    """Prompts of a run, validation prompts, and the position in the prompts."""

    tokenizer: Tokenizer
    prompt_dataset: PromptDataset
    dataloader: DistributedDataLoader
    validation_dataset: PromptDataset | None

    def build_validator(self, config: RlConfig, rl_state: RlState) -> RolloutValidator | None:
        """Build the validator, or return None if there are no validation prompts."""
        if self.validation_dataset is None:
            return None
        return RolloutValidator(
            config.validation, self.validation_dataset, rl_state.validation_results
        )


def build_prompt_data(recipe: Recipe, config: RlConfig, job: WorkerJob) -> PromptData:
    """Open the prompts, on the main rank before the other ranks."""
    with main_rank_first(job.store, job.rank_info, "data"):
        tokenizer = build_tokenizer(recipe)
        assert tokenizer is not None, "a rule requires one"
        dataset, path = recipe.training.dataset, ("training", "dataset")
        prompts = open_prompt_dataset(dataset, path, recipe, tokenizer, job)
        validation = None
        if isinstance(config.validation.dataset, DatasetConfig):
            validation = open_prompt_dataset(
                config.validation.dataset, ("rl", "validation", "dataset"), recipe, tokenizer, job
            )
    send_heartbeat()
    dataloader = DistributedDataLoader(
        prompts,
        seed=recipe.debug.seed,
        shuffle=dataset.shuffle,
        repeat=dataset.repeat,
        global_batch_size=1,
        config_path=path,
    )
    return PromptData(tokenizer, prompts, dataloader, validation)


def open_prompt_dataset(
    dataset: DatasetConfig,
    path: tuple[str, ...],
    recipe: Recipe,
    tokenizer: Tokenizer,
    job: WorkerJob,
) -> PromptDataset:
    """Open the prompts of one dataset."""
    prompts: Any = build_dataset(
        dataset,
        path,
        recipe,
        tokenizer=tokenizer,
        seq_len=recipe.training.seq_len,
        run_dir=job.resolved_path.parent,
    )
    assert isinstance(prompts, PromptDataset), "a rule requires a prompt dataset"
    return prompts


def build_reference_fn(
    recipe: Recipe,
    config: RlConfig,
    engine: Engine,
    device: torch.device,
    meshes: ParallelMeshes | None,
    tokenizer: Tokenizer,
) -> PrepareBatchesFn | None:
    """Build the function that adds the reference's log-probabilities to batches.

    Return None if `rl.reference` is not set. The reference is the policy without its adapters, a
    second model with the initial weights, or a teacher.
    """
    if config.reference is None:
        return None
    temperature = config.sampling.temperature
    if config.reference == "adapter_off":
        without_adapters = partial(disable_adapters, engine.model)
        reference = ReferenceModel(engine, reference_context=without_adapters)
        return partial(reference, temperature=temperature)
    build = partial(
        build_engine,
        device=device,
        meshes=meshes,
        document_id_fn=build_document_id_fn(recipe, tokenizer),
    )
    if config.reference == "teacher":
        teacher = build_teacher(recipe, get_default_rank_group(), build)
        return partial(ReferenceModel(teacher), temperature=temperature)
    frozen = build_frozen_reference(recipe, get_default_rank_group(), build)
    return partial(ReferenceModel(frozen), temperature=temperature)


def build_drop_fn(config: RlConfig, engine: Engine) -> PrepareBatchesFn | None:
    """Build the function that drops tokens from batches, None if the correction drops none."""
    algorithm = config.algorithm
    if not algorithm.correction.drops_tokens:
        return None
    return DropTokens(
        algorithm.correction.load_builder()(algorithm.correction),
        algorithm.length_norm,
        engine,
        config.sampling.temperature,
    )


def chain_prepare_fns(*possible: PrepareBatchesFn | None) -> PrepareBatchesFn | None:
    """Return the function that calls one after the other, None for none."""
    prepare_fns = [each for each in possible if each is not None]
    if not prepare_fns:
        return None

    def prepare_batches(batches: Sequence[Any]) -> list[Any]:
        return reduce(lambda prepared, prepare: prepare(prepared), prepare_fns, list(batches))

    return prepare_batches


def build_rollout_layout(
    recipe: Recipe, config: RlConfig, meshes: ParallelMeshes | None
) -> RolloutLayout:
    """Build the settings for packing rollouts into batches."""
    attention = getattr(recipe.model, "attention", None)
    return RolloutLayout(
        seq_len=recipe.training.seq_len,
        local_batch_size=recipe.training.local_batch_size,
        should_pack=isinstance(attention, AttentionConfig)
        and attention.mask == "block_causal"
        and not config.batch_invariant,
        dp_rank=0 if meshes is None else meshes.dp_rank,
        dp_size=1 if meshes is None else meshes.parallel_dims.dp_size,
    )
