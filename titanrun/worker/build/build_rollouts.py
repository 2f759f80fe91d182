"""Builders of RL rollouts: generator, environment, rewards, weight synchronization."""

import logging
from functools import partial
from pathlib import Path

import torch

from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.end_of_turn import find_end_ids
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.distributed.device import CPU
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.object_collectives import get_default_rank_group, new_file_io_group
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import get_precision
from titanrun.distributed.quantized_weights import QuantizedWeight, cast_parameters_
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.shared.spec.flops import count_parameters
from titanrun.recipe.recipe import Recipe
from titanrun.rl.chat_renderer import ChatRenderer, PlainRenderer, Renderer
from titanrun.rl.config import RlConfig
from titanrun.rl.environments.environment_protocol import Environment
from titanrun.rl.generators.batch_invariant import BatchInvariantForward
from titanrun.rl.generators.generator_protocol import (
    GenerationLog,
    Generator,
    GeneratorProcessConfig,
    GeneratorResources,
    WeightUpdates,
)
from titanrun.rl.rewards.reward_function import Reward, RewardFunction
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.weight_sync.folder_transport import FolderTransport
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
from titanrun.rl.weight_sync.shared_memory_transport import SharedMemoryTransport
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.rl.weight_sync.weight_sync import WeightSync
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.build.build_data import build_document_id_fn
from titanrun.worker.build.build_metrics import get_unique_name
from titanrun.worker.build.build_model import build_model, materialize_and_init
from titanrun.worker.build.build_parallelism import maybe_apply_tensor_parallel
from titanrun.worker.worker_job import WorkerJob

log = logging.getLogger(__name__)

WEIGHTS_FOLDER = "weights"


def build_rollouts_and_weight_sync(
    recipe: Recipe,
    config: RlConfig,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    tokenizer: Tokenizer,
) -> tuple[RolloutRunner, WeightSync]:
    """Build the runner of conversations, and the weight synchronization to its generator."""
    runner = build_rollout_runner(
        recipe,
        config,
        job.resolved_path.parent / "logs",
        build_generator_resources(recipe, config, job, device, meshes, tokenizer),
        tokenizer,
        device,
    )
    return runner, build_weight_sync(recipe, config, job, runner.generator)


def build_rollout_runner(
    recipe: Recipe,
    config: RlConfig,
    logs: Path,
    resources: GeneratorResources,
    tokenizer: Tokenizer,
    device: torch.device,
) -> RolloutRunner:
    """Build the runner of conversations with generator, environment, rewards and renderer.

    `logs` is the folder of the programs' logs.
    """
    environment: Environment = config.environment.load_builder()(config.environment, logs=logs)
    generator: Generator = config.generator.load_builder()(config.generator, resources=resources)
    return RolloutRunner(
        generator=generator,
        environment=environment,
        reward_function=build_reward_function(config, logs, device=device),
        renderer=build_renderer(config, tokenizer),
        samples_per_prompt=config.rollout.samples_per_prompt,
        max_tokens=config.rollout.max_tokens or recipe.training.seq_len,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=recipe.debug.seed,
        # generation may take long: a group without the collective timeout of training
        ranks=new_file_io_group(),
        ranks_per_generator=recipe.parallelism.tensor_parallel_degree
        if getattr(config.generator, "tensor_parallel", False)
        else 1,
    )


def build_generator_resources(
    recipe: Recipe,
    config: RlConfig,
    job: WorkerJob,
    device: torch.device,
    meshes: ParallelMeshes | None,
    tokenizer: Tokenizer,
    updates: WeightUpdates | None = None,
    generation_log: GenerationLog | None = None,
) -> GeneratorResources:
    """Build the resources of a generator."""
    training = recipe.training
    precision = get_precision(training.dtype, training.mixed_precision_param)
    # a trainer's fp32 weights and their copies, or weights that are in the compute dtype already
    generator_precision = precision if config.batch_invariant else precision.as_stored
    return GeneratorResources(
        build_model=lambda is_split: clone_policy_model(
            recipe, device, get_generator_dtype(recipe, config), meshes if is_split else None
        ),
        sampling=config.sampling,
        end_ids=find_completion_end_ids(config, tokenizer),
        encode=partial(tokenizer.encode, add_bos=False, add_eos=True),
        build_working_weights=lambda model: WorkingWeights(model, generator_precision),
        process_config=GeneratorProcessConfig(
            resolved_text=job.resolved_text,
            dtype_name=str(get_generator_dtype(recipe, config)).removeprefix("torch."),
            max_tokens=config.rollout.max_tokens or training.seq_len,
            log_file=job.resolved_path.parent / "logs" / f"generator-rank{job.rank_info.rank}.log",
            local_rank=job.rank_info.local_rank,
        ),
        batch_invariant_forward=BatchInvariantForward(
            training.local_batch_size, training.seq_len, build_document_id_fn(recipe, tokenizer)
        )
        if config.batch_invariant
        else None,
        updates=updates,
        log=generation_log,
    )


def get_generator_dtype(recipe: Recipe, config: RlConfig) -> torch.dtype:
    """Return the compute dtype of the generator.

    It is the trainer's compute dtype, or its storage dtype if both must agree bit by bit.
    """
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    return precision.storage_dtype if config.batch_invariant else precision.compute_dtype


def clone_policy_model(
    recipe: Recipe, device: torch.device, dtype: torch.dtype, meshes: ParallelMeshes | None = None
) -> torch.nn.Module:
    """Build a model of the policy's architecture, converted like it, with parameters in `dtype`.

    Buffers keep their own dtype. The model is whole on this rank, or split over the tensor-parallel
    ranks of `meshes`. Activations and logits are whole on each rank, since prompts have any
    lengths.
    """
    model = build_model(
        recipe, get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    )
    convert_model(recipe, model, meshes=None)
    cast_parameters_(model, dtype)
    maybe_apply_tensor_parallel(recipe, model, meshes, is_weights_only=True)
    materialize_and_init(model, device=device, seed=recipe.debug.seed)
    if meshes is not None:
        held = sum(to_local(parameter).numel() for parameter in model.parameters())
        log.info(
            "the generator holds %s of its %s parameters on each rank",
            f"{held:,}",
            f"{count_parameters(recipe.model):,}",
        )
    return model.eval().requires_grad_(False)


def find_completion_end_ids(config: RlConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids at which a completion ends; in a chat those that end a reply."""
    if config.rollout.renderer == "chat" and isinstance(tokenizer, ChatTokenizer):
        with nest_problems(("rl", "rollout", "renderer")):
            return find_end_ids(load_chat_template(tokenizer), tokenizer)
    return frozenset() if tokenizer.eos_id is None else frozenset({tokenizer.eos_id})


def build_renderer(config: RlConfig, tokenizer: Tokenizer) -> Renderer:
    """Build the converter from conversations to tokens."""
    if config.rollout.renderer == "plain":
        return PlainRenderer(tokenizer)
    assert isinstance(tokenizer, ChatTokenizer)
    with nest_problems(("rl", "rollout", "renderer")):
        template = load_chat_template(tokenizer)
    return ChatRenderer(tokenizer, partial(template.render, add_generation_prompt=True))


def build_reward_function(
    config: RlConfig, logs: Path, *, device: torch.device = CPU
) -> RewardFunction:
    """Build the rewards by name, those with models on `device`. Repeated names are numbered."""
    rewards: dict[str, tuple[Reward, float]] = {}
    for reward in config.rewards:
        name = get_unique_name(str(reward.name), rewards)  # type: ignore[attr-defined]
        rewards[name] = (
            reward.load_builder()(
                reward,
                log=logs / f"reward-{name.replace(' ', '-')}.log",
                **({"device": device} if reward.uses_device else {}),
            ),
            reward.weight,
        )
    return RewardFunction(rewards, config.rollout.truncation_reward, config.rollout.error_reward)


def build_weight_sync(
    recipe: Recipe, config: RlConfig, job: WorkerJob, generator: Generator
) -> WeightSync:
    """Build the weight synchronization from engine to generator."""
    transport = build_weight_transport(config, job.resolved_path.parent / WEIGHTS_FOLDER)
    return WeightSync(
        transport, generator, get_generator_dtype(recipe, config), get_sent_names(recipe)
    )


def get_sent_names(recipe: Recipe) -> frozenset[str]:
    """Return the names of the tensors that are sent in the generator's dtype.

    The generator quantizes the other matrices again: to the same codes if they arrive unrounded.
    """
    return get_parameter_names(recipe) - get_quantized_names(recipe)


def get_parameter_names(recipe: Recipe) -> frozenset[str]:
    """Return the names of the full model's parameters after conversion."""
    return frozenset(
        name for name, _ in build_meta_policy(recipe).named_parameters(remove_duplicate=False)
    )


def get_quantized_names(recipe: Recipe) -> frozenset[str]:
    """Return the names of the full model's quantized matrices."""
    named = build_meta_policy(recipe).named_parameters(remove_duplicate=False)
    return frozenset(name for name, weight in named if isinstance(weight, QuantizedWeight))


def build_meta_policy(recipe: Recipe) -> torch.nn.Module:
    """Build the full model on the meta device and convert it."""
    meta_model = build_model(
        recipe, get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    )
    convert_model(recipe, meta_model, meshes=None)
    return meta_model


def build_weight_transport(config: RlConfig, folder: Path) -> WeightTransport:
    """Build the transport between trainer and generator.

    Args:
        config: the rl section.
        folder: folder of transports through files.
    """
    keep = config.sync.keep_versions
    if config.sync.transport == "in_process":
        return InProcessTransport(keep=keep)
    if config.sync.transport == "shared_memory":
        return SharedMemoryTransport(folder, keep=keep, ranks=get_default_rank_group())
    kind = config.sync.transport
    assert kind not in ("object_store", "connection"), "rules allow them with carriers of their own"
    return FolderTransport(folder, keep=keep, ranks=get_default_rank_group(), kind=kind)
