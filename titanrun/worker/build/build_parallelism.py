"""Application of all forms of parallelism to a model on the meta device.

These are pipeline, expert, tensor, context and data parallelism.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from titanrun.components.converters.config import Float8LinearConfig
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error
from titanrun.distributed.context_parallel_layout import SequenceSharding
from titanrun.distributed.device import resolves_to_cpu
from titanrun.distributed.dtypes import get_dtype
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import Precision
from titanrun.distributed.quantized_weights import iter_quantized_parameters
from titanrun.distributed.spec.parallel_dims import get_cp_chunks_per_rank
from titanrun.distributed.spec.pipeline_stages import PipelinePlan, plan_pipeline
from titanrun.distributed.tied_embeddings import has_tied_embeddings, retie_weights
from titanrun.models.shared.attention import BACKENDS
from titanrun.models.shared.moe_load_balance import get_moe_layers
from titanrun.models.shared.sdpa_attention import FullAttention
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe

if TYPE_CHECKING:
    from titanrun.distributed import compile as model_compile
    from titanrun.distributed import (
        context_parallel,
        expert_parallel,
        fsdp,
        pipeline,
        tensor_parallel,
    )
else:
    # a single process needs none of these slow imports: DTensor takes a second to import, torch's
    # compiler several
    model_compile = LazyModule("titanrun.distributed.compile")
    context_parallel = LazyModule("titanrun.distributed.context_parallel")
    expert_parallel = LazyModule("titanrun.distributed.expert_parallel")
    fsdp = LazyModule("titanrun.distributed.fsdp")
    pipeline = LazyModule("titanrun.distributed.pipeline")
    tensor_parallel = LazyModule("titanrun.distributed.tensor_parallel")


@dataclass(frozen=True, slots=True)
class ParallelizedModel:
    """Properties of a parallelized model that its passes need.

    Args:
        precision: the precision to be applied by the passes. FSDP applies its own.
        stages: pipeline stages by index. None without a pipeline.
        sequence_sharding: split of sequences over context-parallel ranks. None if they are whole.
    """

    precision: Precision
    stages: Mapping[int, nn.Module] | None = None
    sequence_sharding: SequenceSharding | None = None


def parallelize_model(
    recipe: Recipe, model: nn.Module, *, meshes: ParallelMeshes | None, precision: Precision
) -> ParallelizedModel:
    """Parallelize the meta model.

    The order matters. A pipeline rank drops the layers of other ranks. Activation checkpointing
    wraps sharded modules, and data parallelism wraps checkpointed modules, so that a recomputed
    layer finds its weights gathered.
    """
    is_tied = has_tied_embeddings(model)
    stages = maybe_split_into_stages(recipe, model, meshes)
    maybe_apply_expert_parallel(model, meshes)
    maybe_apply_tensor_parallel(recipe, model, meshes)
    sequence_sharding = maybe_apply_context_parallel(recipe, model, meshes)
    recipe.activation_checkpoint.load_builder()(recipe.activation_checkpoint, model=model)
    compile_model(recipe, model, meshes)
    if meshes is None:
        return ParallelizedModel(precision)
    data_parallel = fsdp.DataParallelOptions(
        reshard_policy=recipe.parallelism.fsdp_reshard_after_forward,
        precision=precision,
        reduce_dtype=get_dtype(recipe.training.mixed_precision_reduce),
        uses_cpu_offload=is_offloaded_to_cpu(recipe, meshes),
        ignored_params=frozenset(parameter for _, _, parameter in iter_quantized_parameters(model)),
    )
    parts = [model] if stages is None else stages.values()
    are_shared = [
        fsdp.apply_data_parallel(part, data_parallel, meshes, experts=get_expert_modules(part))
        for part in parts
    ]
    if is_tied and stages is not None:
        retie_weights(model, stages)
    return ParallelizedModel(
        precision.as_stored if all(are_shared) else precision, stages, sequence_sharding
    )


def is_offloaded_to_cpu(recipe: Recipe, meshes: ParallelMeshes | None) -> bool:
    """Return whether data parallelism over several ranks offloads weights to host memory."""
    return (
        recipe.training.enable_cpu_offload
        and meshes is not None
        and meshes.parallel_dims.loss_size > 1
    )


def maybe_split_into_stages(
    recipe: Recipe, model: nn.Module, meshes: ParallelMeshes | None
) -> dict[int, nn.Module] | None:
    """Keep only the layers of this rank's pipeline stages and return the stages.

    Return None without a pipeline.
    """
    group = None if meshes is None else meshes.get_group("pp")
    if group is None:
        return None
    plan = plan_pipeline(recipe.parallelism, recipe.model.module_names())
    check_trainable_stages(model, plan)
    return pipeline.split_into_stages(model, plan, pp_rank=group.rank(), pp_size=group.size())


def check_trainable_stages(model: nn.Module, plan: PipelinePlan) -> None:
    """Check that each stage has trainable parameters, without which it has no gradients.

    Raises:
        ProblemsFound: a stage is completely frozen.
    """
    for number, names in enumerate(plan.stages):
        prefixes = tuple(f"{name}." for name in names)
        # a weight tied between embedding and head is listed under both names
        if not any(
            held.requires_grad
            for name, held in model.named_parameters(remove_duplicate=False)
            if name.startswith(prefixes)
        ):
            message = (
                f"pipeline stage {number} ({', '.join(names)}) has no trainable parameters, "
                "but each stage needs some"
            )
            hint = "let target_modules match modules of every stage, or use fewer stages"
            raise problem_error(
                "conflict", message, path=("parallelism", "pipeline_parallel_degree"), hint=hint
            )


def maybe_apply_expert_parallel(model: nn.Module, meshes: ParallelMeshes | None) -> None:
    """Distribute the experts of every layer over the expert-parallel ranks."""
    if meshes is not None and meshes.parallel_dims.ep > 1:
        expert_parallel.apply_expert_parallel(get_moe_layers(model), meshes)


def get_expert_modules(model: nn.Module) -> list[nn.Module]:
    """Return the experts of each MoE layer."""
    return [layer.experts for layer in get_moe_layers(model)]


def maybe_apply_tensor_parallel(
    recipe: Recipe,
    model: nn.Module,
    meshes: ParallelMeshes | None,
    *,
    is_weights_only: bool = False,
) -> None:
    """Split the model's matrices according to its family's plan.

    Args:
        recipe: the recipe of the run.
        model: the meta model.
        meshes: the meshes of this rank.
        is_weights_only: keep activations between the matrices, and the logits, unsharded on each
            rank. Sequences may then have any length.
    """
    if meshes is None or meshes.parallel_dims.tp == 1:
        return
    how = tensor_parallel.TensorParallelOptions(
        uses_sequence_parallel=recipe.parallelism.enable_sequence_parallel and not is_weights_only,
        uses_loss_parallel=is_loss_parallel(recipe) and not is_weights_only,
    )
    family = load_family_module(type(recipe.model), "parallelize")
    # the plan of a class from another library depends on the built model
    plan = (
        family.build_tensor_plan(model)
        if hasattr(family, "build_tensor_plan")
        else family.TENSOR_PLAN
    )
    tensor_parallel.apply_tensor_parallel(model, plan, how, meshes)


def maybe_apply_context_parallel(
    recipe: Recipe, model: nn.Module, meshes: ParallelMeshes | None
) -> SequenceSharding | None:
    """Apply context parallelism and return the split of sequences.

    Return None if each rank has whole sequences.
    """
    group = None if meshes is None else meshes.get_group("cp")
    if group is None:
        return None
    sharding = SequenceSharding(group, get_cp_chunks_per_rank(recipe.parallelism))
    context_parallel.apply_context_parallel(
        model,
        sharding,
        recipe.parallelism.context_parallel_rotate_method,
        attention_classes=(*BACKENDS.values(), FullAttention),
    )
    return sharding


def compile_model(recipe: Recipe, model: nn.Module, meshes: ParallelMeshes | None = None) -> None:
    """Compile the layers if the recipe enables it.

    Raises:
        ProblemsFound: this machine cannot compile them.
    """
    if not recipe.compile.enable:
        return
    if recipe.compile.backend == "inductor" and resolves_to_cpu(recipe.device):
        model_compile.check_cpp_compiler()
    group = None if meshes is None else meshes.get_group("tp")
    if recipe.parallelism.enable_async_tensor_parallel and group is not None:
        if resolves_to_cpu(recipe.device):
            model_compile.raise_async_tp_on_cpu()
        model_compile.enable_async_tp(group)
    if "model" in recipe.compile.components:
        if recipe.parallelism.pipeline_parallel_degree > 1:
            model_compile.allow_second_backward()
        if has_rowwise_scales(recipe):
            model_compile.emulate_precision_casts()
        options = model_compile.CompileOptions(
            recipe.compile.backend, has_fixed_shapes(recipe), recipe.compile.max_autotune
        )
        model_compile.compile_layers(model, options, experts=get_moe_layers(model))


def has_fixed_shapes(recipe: Recipe) -> bool:
    """Return whether all passes of a run have the shapes of its training or validation.

    Rollouts, generated samples and evaluation tasks have others, and the varlen kernels take a list
    of documents that grows.
    """
    attention = getattr(recipe.model, "attention", None)
    return (
        recipe.rl is None
        and not recipe.evaluation.tasks
        and not recipe.metrics.samples.prompts
        and getattr(attention, "backend", None) != "varlen"
    )


def has_rowwise_scales(recipe: Recipe) -> bool:
    """Return whether a float8 converter has a scale per row."""
    return any(
        isinstance(converter, Float8LinearConfig) and converter.scales != "tensorwise"
        for converter in recipe.converters
    )


def is_loss_parallel(recipe: Recipe) -> bool:
    """Return whether the loss reads vocabulary-sharded logits."""
    return recipe.loss.supports_loss_parallel and not recipe.parallelism.disable_loss_parallel
