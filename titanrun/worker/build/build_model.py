"""Builders of a run's model, its initial weights, and the engine that trains it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from titanrun.components.converters.lora import init_adapters
from titanrun.components.data.document_ids import DocumentIdFn
from titanrun.components.data.mtp_labels import attach_mtp_labels
from titanrun.components.losses.config import ChunkedCrossEntropyConfig
from titanrun.components.metrics.step_metrics import disable_compilation, record_metric
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.chunked_loss import ChunkedLMHead
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.device import CPU, is_accelerator
from titanrun.distributed.dtypes import set_default_dtype
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.head_loss import HeadLossOptions, compute_logit_gradients
from titanrun.distributed.meta_device import allocate_model, init_on_meta_device
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import Precision
from titanrun.distributed.spec.pipeline_stages import plan_pipeline, should_overlap_passes
from titanrun.distributed.split_logits import compute_part_gradients, summarize_logit_part
from titanrun.distributed.tied_embeddings import PipelineTiedEmbeddings, has_tied_embeddings
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.shared.moe_load_balance import LoadBalancer, get_moe_layers
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.engine import Engine
from titanrun.training.optimizer_in_backward import OptimizerInBackward
from titanrun.training.replicas.group_engine import GroupEngine
from titanrun.training.replicas.synced_engine import SyncedEngine
from titanrun.training.runners.chunked_forward_backward import ChunkedLossForwardBackward
from titanrun.training.runners.forward_backward import ForwardBackward, Loss
from titanrun.training.runners.mtp_forward_backward import MTPForwardBackward
from titanrun.worker.build.apply_replacements import apply_replacements
from titanrun.worker.build.build_parallelism import ParallelizedModel, is_loss_parallel

if TYPE_CHECKING:
    from titanrun.distributed import dual_pipe_overlap, fsdp, pipeline
    from titanrun.training.runners import pipeline_forward_backward as pipeline_runner
else:
    # only needed with several ranks
    fsdp = LazyModule("titanrun.distributed.fsdp")
    dual_pipe_overlap = LazyModule("titanrun.distributed.dual_pipe_overlap")
    pipeline = LazyModule("titanrun.distributed.pipeline")
    pipeline_runner = LazyModule("titanrun.training.runners.pipeline_forward_backward")


def build_model(recipe: Recipe, precision: Precision) -> nn.Module:
    """Build the model on the meta device, with replacements but without converters."""
    with init_on_meta_device(), set_default_dtype(precision.storage_dtype):
        model: nn.Module = recipe.model.load_builder()(
            recipe.model, seq_len=get_max_seq_len(recipe)
        )
        apply_replacements(recipe, model)
    for layer in get_moe_layers(model):
        layer.forces_load_balance = recipe.debug.moe_force_load_balance
    return model


def check_param_groups(recipe: Recipe, model: nn.Module) -> None:
    """Check that the optimizer's groups fit the trainable parameters after conversion.

    Must be called on the full model, because a pipeline stage may lack parameters that a pattern
    matches.

    Raises:
        ProblemsFound: the groups do not fit.
    """
    problems = recipe.optimizer.find_param_group_problems(
        [name for name, _ in named_trainable_parameters(model)]
    )
    if problems:
        raise ProblemsFound(problems)


def named_trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are not frozen, by name."""
    return [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


def build_loss(recipe: Recipe) -> Loss:
    """Build the loss, compiled if the recipe enables it."""
    loss: Loss = recipe.loss.load_builder()(recipe.loss)
    if not recipe.compile.enable or "loss" not in recipe.compile.components:
        return loss
    disable_compilation()
    compiled: Loss = torch.compile(loss, backend=recipe.compile.backend)
    return compiled


def get_max_seq_len(recipe: Recipe) -> int:
    """Return the length of the longest sequence that the model will see."""
    if not recipe.validation.enable:
        return recipe.training.seq_len
    assert recipe.validation.seq_len != "auto"
    return max(recipe.training.seq_len, recipe.validation.seq_len)


def materialize_and_init(
    model: nn.Module, *, device: torch.device, seed: int, is_offloaded: bool = False
) -> None:
    """Allocate the model and initialize its weights.

    The weights come from a separate generator, so that they are the same in every run and every
    layout.

    Args:
        model: a parallelized model.
        device: the compute device, on which the weights are drawn.
        seed: seed of the weights.
        is_offloaded: whether weights stay in host memory.
    """
    allocate_model(model, device, parameter_device=CPU if is_offloaded else device)
    generator = WeightInitRng(seed, device, model)
    # every family defines init_weights
    model.init_weights(generator=generator)  # type: ignore[operator]
    init_adapters(model, generator)
    model.train()


def check_attention_dtype(recipe: Recipe, device: torch.device, precision: Precision) -> None:
    """Check that the attention kernel supports the model's compute dtype.

    Raises:
        ProblemsFound: the kernel does not support the dtype.
    """
    is_varlen = getattr(getattr(recipe.model, "attention", None), "backend", None) == "varlen"
    if is_varlen and is_accelerator(device) and precision.compute_dtype == torch.float32:
        message = (
            "varlen attention requires a 16-bit dtype on an accelerator, "
            "but the model computes in float32"
        )
        hint = "set training.mixed_precision_param: bfloat16, or model.attention.backend: flex"
        raise problem_error("conflict", message, path=("model", "attention", "backend"), hint=hint)


def build_engine_from_model(
    recipe: Recipe,
    model: nn.Module,
    parallelized: ParallelizedModel,
    *,
    device: torch.device,
    meshes: ParallelMeshes | None,
    document_id_fn: DocumentIdFn,
) -> Engine:
    """Build optimizer, LR schedule and loss, and the engine around the model."""
    optimizer = recipe.optimizer.load_builder()(
        recipe.optimizer, parameters=named_trainable_parameters(model)
    )
    if recipe.model.count_routed_experts():
        LoadBalancer(
            get_moe_layers(model),
            **build_expert_count_reductions(meshes),
            updates_bias=find_lora_converter(recipe) is None,
        ).register_step_hook(optimizer, record_metric)
    schedule = recipe.lr_scheduler.load_builder()(recipe.lr_scheduler)
    loss = build_loss(recipe)
    tied = build_tied_embeddings(recipe, model, parallelized, meshes)
    weights = WorkingWeights(model, parallelized.precision)
    steps_early = getattr(recipe.optimizer, "early_step_in_backward", False)
    return select_engine_class(recipe.fault_tolerance)(
        model,
        optimizer,
        schedule,
        loss,
        device=device,
        working_weights=weights,
        max_norm=recipe.training.max_norm,
        meshes=meshes,
        sequence_sharding=parallelized.sequence_sharding,
        optimizer_in_backward=OptimizerInBackward(optimizer, device=device)
        if steps_early
        else None,
        tied_embeddings=tied,
        document_id_fn=wrap_with_mtp_labels(recipe, document_id_fn),
        runner=build_forward_backward(
            recipe, model, parallelized, loss, weights, device=device, meshes=meshes
        ),
    )


def select_engine_class(config: FaultToleranceConfig) -> Callable[..., Engine]:
    """Return the engine of a run with or without replica groups."""
    if not config.enable:
        return Engine
    if config.semi_sync_method is None:
        return GroupEngine
    has_momentum = config.semi_sync_method == "diloco" and config.outer_momentum > 0
    return partial(SyncedEngine, has_outer_momentum=has_momentum)


def build_forward_backward(
    recipe: Recipe,
    model: nn.Module,
    parallelized: ParallelizedModel,
    loss: Loss,
    weights: WorkingWeights,
    *,
    device: torch.device,
    meshes: ParallelMeshes | None,
) -> ForwardBackward | None:
    """Build the forward-backward runner. Return None for plain passes that compute logits."""
    if parallelized.stages is not None:
        return build_pipeline_forward_backward(
            recipe, parallelized, loss, weights, device=device, meshes=meshes
        )
    if recipe.loss.mtp_loss_weight is not None:
        return MTPForwardBackward(
            model,
            loss,
            weights,
            recipe.model.mtp_depth(),
            recipe.loss.mtp_loss_weight,
        )
    if recipe.loss.num_loss_chunks is None:
        return None
    head = ChunkedLMHead(
        model.get_submodule("output"),
        recipe.loss.num_loss_chunks,
        needs_full_logits=not is_loss_parallel(recipe),
        cross_entropy=build_head_loss_options(recipe),
    )
    return ChunkedLossForwardBackward(model, loss, weights, head)


def build_head_loss_options(recipe: Recipe) -> HeadLossOptions | None:
    """Build the options of the loss that the head computes, None for losses of plug-ins."""
    config = recipe.loss
    if not isinstance(config, ChunkedCrossEntropyConfig):
        return None
    functions: Any = (compute_logit_gradients, summarize_logit_part, compute_part_gradients)
    if recipe.compile.enable and "loss" in recipe.compile.components:
        functions = [torch.compile(each, backend=recipe.compile.backend) for each in functions]
    return HeadLossOptions(
        config.num_loss_chunks, config.label_smoothing, config.z_loss, *functions
    )


def wrap_with_mtp_labels(recipe: Recipe, document_id_fn: DocumentIdFn) -> DocumentIdFn:
    """Extend the function by labels for multi-token prediction if the loss uses them."""
    if recipe.loss.mtp_loss_weight is None:
        return document_id_fn
    return lambda batch: attach_mtp_labels(document_id_fn(batch), recipe.model.mtp_depth())


def build_tied_embeddings(
    recipe: Recipe, model: nn.Module, parallelized: ParallelizedModel, meshes: ParallelMeshes | None
) -> PipelineTiedEmbeddings | None:
    """Build this rank's copy of a weight tied between the first and last pipeline stage.

    Return None if this rank has no other copy. Must be called after weights are allocated and
    before they are used.
    """
    group = None if meshes is None else meshes.get_group("pp")
    if (
        meshes is None
        or group is None
        or parallelized.stages is None
        or not has_tied_embeddings(model)
    ):
        return None
    plan = plan_pipeline(recipe.parallelism, recipe.model.module_names())
    holders = pipeline.map_stages_to_ranks(plan, group.size())
    first, last = holders[0], holders[-1]
    if first != last:
        return PipelineTiedEmbeddings(
            model.get_parameter("output.weight"),
            group,
            last if group.rank() == first else first,
            meshes.device,
            counts_in_grad_norm=group.rank() == first,
        )
    if meshes.parallel_dims.fsdp_size > 1:
        embedding, output = model.get_submodule("tok_embeddings"), model.get_submodule("output")
        fsdp.tie_padded_shards(embedding, output)
    return None


def build_expert_count_reductions(
    meshes: ParallelMeshes | None,
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Build the reductions of expert loads over ranks with other tokens and with other layers."""
    if meshes is None:
        return {}
    return {
        "all_reduce_sum": lambda counts_LE: meshes.all_reduce_sum_(counts_LE, "loss"),
        "all_reduce_max": lambda values: meshes.all_reduce_max_(values.to(meshes.device), "pp"),
    }


def build_pipeline_forward_backward(
    recipe: Recipe,
    parallelized: ParallelizedModel,
    loss: Loss,
    weights: WorkingWeights,
    *,
    device: torch.device,
    meshes: ParallelMeshes | None,
) -> ForwardBackward:
    """Build the runner of batches through all pipeline stages."""
    assert meshes is not None and parallelized.stages is not None
    group = meshes.get_group("pp")
    assert group is not None
    stages = pipeline.Pipeline(
        parallelized.stages,
        plan_pipeline(recipe.parallelism, recipe.model.module_names()),
        group=group,
        device=device,
        enable_overlap=build_pair_overlap(parallelized.stages)
        if should_overlap_passes(recipe.parallelism)
        else None,
    )
    # a rule checks that a pipeline processes token batches
    return cast(ForwardBackward, pipeline_runner.PipelineForwardBackward(stages, loss, weights))


def build_pair_overlap(stages: Mapping[int, nn.Module]) -> Callable[[Any], None]:
    """Build the function that lets a schedule overlap pairs of passes in MoE layers."""
    barrier = dual_pipe_overlap.install_barriers(
        [layer for stage in stages.values() for layer in get_moe_layers(stage)]
    )
    return partial(dual_pipe_overlap.enable_pass_overlap, barrier=barrier)
