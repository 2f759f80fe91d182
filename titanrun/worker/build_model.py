"""The model of a run, laid out over the ranks and allocated with its first weights, and the engine that trains it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.lora import init_adapters
from titanrun.components.data.documents import Marking
from titanrun.components.data.further_tokens import with_further_tokens
from titanrun.components.metrics.recorder import record
from titanrun.config.problems import ProblemsFound, fail
from titanrun.distributed.chunked_head import ChunkedHead
from titanrun.distributed.degrees import pieces_per_rank
from titanrun.distributed.device import CPU, is_accelerator, means_cpu
from titanrun.distributed.dtypes import default_dtype, dtype_named
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.meta_device import allocate, on_meta_device
from titanrun.distributed.packed import packed_parameters
from titanrun.distributed.precision import Precision
from titanrun.distributed.rows import RowSharing
from titanrun.distributed.seeds import WeightGenerator
from titanrun.distributed.stages import PipelinePlan, overlaps_passes, plan_pipeline
from titanrun.distributed.tied_ends import TiedEnds, are_tied, tie_as_laid_out
from titanrun.models.shared.attention import BACKENDS, EverythingSeen
from titanrun.models.shared.family import family_module
from titanrun.models.shared.moe_balance import ExpertBalance, moe_layers
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.training.chunked_passes import ChunkedModel
from titanrun.training.early_steps import EarlySteps
from titanrun.training.engine import Engine
from titanrun.training.further_passes import FurtherTokens
from titanrun.training.passes import Loss, Passes
from titanrun.worker.replacements import replace_parts


def build_model(recipe: Recipe, precision: Precision) -> nn.Module:
    """The model on the meta device, its parts replaced as the recipe says, before converters rewrite it."""
    with on_meta_device(), default_dtype(precision.storage):
        model: nn.Module = recipe.model.builder()(recipe.model, seq_len=longest_row(recipe))
        replace_parts(recipe, model)
    for layer in moe_layers(model):
        layer.deals_in_turn = recipe.debug.moe_force_load_balance
    return model


def refuse_unclaimed(recipe: Recipe, model: nn.Module) -> None:
    """Raises ProblemsFound where the optimizer's groups do not fit what is trained of the model, which converters are through with.

    Called where the model is whole: a pipeline stage lacks what a pattern may mean.
    """
    problems = recipe.optimizer.claim_problems([name for name, _ in trained(model)])
    if problems:
        raise ProblemsFound(problems)


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are not frozen, by name."""
    return [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


@dataclass(frozen=True, slots=True)
class Layout:
    """What the passes through a model that is laid out need: the precision that is left for them, its stages in a pipeline, and how
    ranks share rows."""

    precision: Precision
    stages: Mapping[int, nn.Module] | None = None
    rows: RowSharing | None = None


def lay_out(
    recipe: Recipe, model: nn.Module, *, meshes: Meshes | None, precision: Precision
) -> Layout:
    """Lays the meta model out over the ranks.

    The order matters: a pipeline rank lets go of what others hold; activation checkpointing wraps what is split over ranks, and data
    parallelism what is checkpointed, so that a recomputed layer finds its weights gathered.
    """
    is_tied = are_tied(model)
    stages = cut_into_stages(recipe, model, meshes)
    split_over_expert_ranks(model, meshes)
    split_over_tensor_ranks(recipe, model, meshes)
    rows = share_over_context_ranks(recipe, model, meshes)
    recipe.activation_checkpoint.builder()(recipe.activation_checkpoint, model=model)
    compile_model(recipe, model, meshes)
    if meshes is None:
        return Layout(precision)
    # by name: DTensor takes a second to import, which one process alone need not spend
    fsdp = import_module("titanrun.distributed.fsdp")
    data_parallel = fsdp.DataParallel(
        reshard=recipe.parallelism.fsdp_reshard_after_forward,
        precision=precision,
        reduce=dtype_named(recipe.training.mixed_precision_reduce),
        offload=lives_on_host(recipe, meshes),
        apart=frozenset(parameter for _, _, parameter in packed_parameters(model)),
    )
    parts = [model] if stages is None else stages.values()
    are_shared = [
        fsdp.share_over_ranks(part, data_parallel, meshes, experts=experts_of(part))
        for part in parts
    ]
    if is_tied and stages is not None:
        tie_as_laid_out(model, stages)
    return Layout(precision.without_autocast if all(are_shared) else precision, stages, rows)


def lives_on_host(recipe: Recipe, meshes: Meshes | None) -> bool:
    """Whether weights are in host memory between their uses, which is for data parallelism over several ranks to do."""
    return recipe.training.enable_cpu_offload and meshes is not None and meshes.degrees.loss > 1


def cut_into_stages(
    recipe: Recipe, model: nn.Module, meshes: Meshes | None
) -> dict[int, nn.Module] | None:
    """Leaves the model with the layers of this rank's pipeline stages, and gives these; None without a pipeline."""
    group = None if meshes is None else meshes.group("pp")
    if group is None:
        return None
    plan = plan_pipeline(recipe.parallelism, recipe.model.module_names())
    refuse_frozen_stages(model, plan)
    stages: dict[int, nn.Module] = import_module("titanrun.distributed.pipeline").cut(
        model, plan, rank=group.rank(), ranks=group.size()
    )
    return stages


def refuse_frozen_stages(model: nn.Module, plan: PipelinePlan) -> None:
    """Raises a problem where a stage has nothing to train: gradients begin and end nowhere on it."""
    for number, names in enumerate(plan.stages):
        prefixes = tuple(f"{name}." for name in names)
        # a matrix that embedding and head share is listed under both
        if not any(
            held.requires_grad
            for name, held in model.named_parameters(remove_duplicate=False)
            if name.startswith(prefixes)
        ):
            message = f"everything in pipeline stage {number} ({', '.join(names)}) is frozen, and each stage must train something"
            help = "let target_modules name modules of every stage, or use fewer stages"
            raise fail(
                "conflict", message, path=("parallelism", "pipeline_parallel_degree"), help=help
            )


def split_over_expert_ranks(model: nn.Module, meshes: Meshes | None) -> None:
    """Gives each rank some of the experts of every layer."""
    if meshes is not None and meshes.degrees.expert > 1:
        import_module("titanrun.distributed.expert_parallel").spread_experts(
            moe_layers(model), meshes
        )


def experts_of(model: nn.Module) -> list[nn.Module]:
    """The experts of each layer that has some."""
    return [layer.experts for layer in moe_layers(model)]


def split_over_tensor_ranks(
    recipe: Recipe, model: nn.Module, meshes: Meshes | None, *, matrices_only: bool = False
) -> None:
    """Splits the matrices of the model as its family plans. With `matrices_only` what lies between them, and the logits, stay whole on each
    rank: rows may have any length then."""
    if meshes is None or meshes.degrees.tensor == 1:
        return
    tensor_parallel = import_module("titanrun.distributed.tensor_parallel")
    how = tensor_parallel.TensorParallel(
        sequence=recipe.parallelism.enable_sequence_parallel and not matrices_only,
        vocabulary=splits_vocabulary(recipe) and not matrices_only,
    )
    family = family_module(type(recipe.model), "parallelize")
    # the plan of a class of another library is known once it is built
    plan = family.tensor_plan(model) if hasattr(family, "tensor_plan") else family.TENSOR_PLAN
    tensor_parallel.split_matrices(model, plan, how, meshes)


def share_over_context_ranks(
    recipe: Recipe, model: nn.Module, meshes: Meshes | None
) -> RowSharing | None:
    """Lets attention see the rows that several ranks share, and gives how they do; None where each rank has whole rows."""
    group = None if meshes is None else meshes.group("cp")
    if group is None:
        return None
    rows = RowSharing(group, pieces_per_rank(recipe.parallelism))
    share_rows = import_module("titanrun.distributed.context_parallel").share_rows
    share_rows(
        model,
        rows,
        recipe.parallelism.context_parallel_rotate_method,
        attention=(*BACKENDS.values(), EverythingSeen),
    )
    return rows


def compile_model(recipe: Recipe, model: nn.Module, meshes: Meshes | None = None) -> None:
    """Compiles the layers, if the recipe asks for it. Raises ProblemsFound for what this machine cannot compile."""
    if not recipe.compile.enable:
        return
    # by name: it imports torch's compiler, which takes seconds
    compiled = import_module("titanrun.distributed.compiled")
    if recipe.compile.backend == "inductor" and means_cpu(recipe.device):
        compiled.refuse_missing_compiler()
    group = None if meshes is None else meshes.group("tp")
    if recipe.parallelism.enable_async_tensor_parallel and group is not None:
        if means_cpu(recipe.device):
            compiled.refuse_overlap()
        compiled.overlap_tensor_parallelism(group)
    if "model" in recipe.compile.components:
        if recipe.parallelism.pipeline_parallel_degree > 1:
            compiled.allow_second_backward()
        compiled.compile_layers(model, backend=recipe.compile.backend, experts=moe_layers(model))


def build_loss(recipe: Recipe) -> Loss:
    """The loss, compiled if the recipe asks for it."""
    loss: Loss = recipe.loss.builder()(recipe.loss)
    if not recipe.compile.enable or "loss" not in recipe.compile.components:
        return loss
    compiled: Loss = torch.compile(loss, backend=recipe.compile.backend)
    return compiled


def longest_row(recipe: Recipe) -> int:
    """Tokens of the longest row that the model will see."""
    if not recipe.validation.enable:
        return recipe.training.seq_len
    assert recipe.validation.seq_len != "auto"
    return max(recipe.training.seq_len, recipe.validation.seq_len)


def materialise(
    model: nn.Module, *, device: torch.device, seed: int, offload: bool = False
) -> None:
    """Allocates the model and draws its weights, from a generator of their own: the same ones in every run and every layout.

    Args:
        model: laid out already.
        device: where it computes, and where the weights are drawn.
        seed: of the weights.
        offload: whether weights live in host memory.
    """
    allocate(model, device, weights_on=CPU if offload else device)
    generator = WeightGenerator(seed, device, model)
    model.init_weights(generator=generator)
    init_adapters(model, generator)
    model.train()


def refuse_attention(recipe: Recipe, device: torch.device, precision: Precision) -> None:
    """Raises ProblemsFound where the kernel of the attention back end cannot compute in the model's dtype."""
    is_varlen = getattr(getattr(recipe.model, "attention", None), "backend", None) == "varlen"
    if is_varlen and is_accelerator(device) and precision.compute == torch.float32:
        message = "varlen attention computes in 16 bits on an accelerator, and the model in float32"
        help = "set training.mixed_precision_param: bfloat16, or model.attention.backend: flex"
        raise fail("conflict", message, path=("model", "attention", "backend"), help=help)


def build_engine(
    recipe: Recipe,
    model: nn.Module,
    layout: Layout,
    *,
    device: torch.device,
    meshes: Meshes | None,
    marking: Marking,
) -> Engine:
    """Optimizer, schedule and loss around the model."""
    optimizer = recipe.optimizer.builder()(recipe.optimizer, parameters=trained(model))
    if recipe.model.routed_experts():
        ExpertBalance(moe_layers(model), **over_ranks(meshes), moves=lora_of(recipe) is None).watch(
            optimizer, record
        )
    schedule = recipe.lr_scheduler.builder()(recipe.lr_scheduler)
    loss = build_loss(recipe)
    tied = tied_ends(recipe, model, layout, meshes)
    steps_early = getattr(recipe.optimizer, "early_step_in_backward", False)
    return Engine(
        model,
        optimizer,
        schedule,
        loss,
        device=device,
        precision=layout.precision,
        max_norm=recipe.training.max_norm,
        meshes=meshes,
        rows=layout.rows,
        early=EarlySteps(optimizer, device=device) if steps_early else None,
        tied=tied,
        marking=told_further_tokens(recipe, marking),
        passes=build_passes(recipe, model, layout, loss, device=device, meshes=meshes),
    )


def build_passes(
    recipe: Recipe,
    model: nn.Module,
    layout: Layout,
    loss: Loss,
    *,
    device: torch.device,
    meshes: Meshes | None,
) -> Passes | None:
    """How batches go through the model, where it is not simply called for its logits."""
    if layout.stages is not None:
        return pipeline_passes(recipe, layout, loss, device=device, meshes=meshes)
    if recipe.loss.further_scale is not None:
        return FurtherTokens(
            model,
            loss,
            layout.precision,
            device,
            recipe.model.further_tokens(),
            recipe.loss.further_scale,
        )
    if recipe.loss.pieces is None:
        return None
    head = ChunkedHead(
        model.get_submodule("output"),
        recipe.loss.pieces,
        whole_vocabulary=not splits_vocabulary(recipe),
    )
    return ChunkedModel(model, loss, layout.precision, device, head)


def told_further_tokens(recipe: Recipe, marking: Marking) -> Marking:
    """`marking`, after which each token knows those behind the next one, where the loss is about them."""
    if recipe.loss.further_scale is None:
        return marking
    return lambda batch: with_further_tokens(marking(batch), recipe.model.further_tokens())


def splits_vocabulary(recipe: Recipe) -> bool:
    """Whether the loss gets the part of the logits that a tensor-parallel rank has."""
    return recipe.loss.takes_split_logits and not recipe.parallelism.disable_loss_parallel


def tied_ends(
    recipe: Recipe, model: nn.Module, layout: Layout, meshes: Meshes | None
) -> TiedEnds | None:
    """This rank's copy of a matrix that the embedding and the output head of a pipeline share; None where it is alone with it.

    Called when weights are allocated and before anybody asks for them.
    """
    group = None if meshes is None else meshes.group("pp")
    if meshes is None or group is None or layout.stages is None or not are_tied(model):
        return None
    plan = plan_pipeline(recipe.parallelism, recipe.model.module_names())
    holders = import_module("titanrun.distributed.pipeline").holders(plan, group.size())
    first, last = holders[0], holders[-1]
    if first != last:
        copy = model.output.weight
        return TiedEnds(
            copy,
            group,
            last if group.rank() == first else first,
            meshes.device,
            counts=group.rank() == first,
        )
    if meshes.degrees.fsdp > 1:
        import_module("titanrun.distributed.fsdp").share_padded(model.tok_embeddings, model.output)
    return None


def over_ranks(meshes: Meshes | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """How the ranks see together how busy the experts are: those that saw other tokens, and those that have other layers."""
    if meshes is None:
        return {}
    return {
        "reduce": lambda counts_LE: meshes.sum_(counts_LE, "loss"),
        "largest": lambda values: meshes.largest_(values.to(meshes.device), "pp"),
    }


def pipeline_passes(
    recipe: Recipe, layout: Layout, loss: Loss, *, device: torch.device, meshes: Meshes | None
) -> Passes:
    """How batches go through the stages of all pipeline ranks."""
    assert meshes is not None and layout.stages is not None
    pipeline = import_module("titanrun.distributed.pipeline").Pipeline(
        layout.stages,
        plan_pipeline(recipe.parallelism, recipe.model.module_names()),
        group=meshes.group("pp"),
        device=device,
        autocast=lambda: layout.precision.autocast(device),
        overlap=overlap_of(layout.stages) if overlaps_passes(recipe.parallelism) else None,
    )
    passes: Passes = import_module("titanrun.training.pipeline_passes").PipelinePasses(
        pipeline, loss
    )
    return passes


def overlap_of(stages: Mapping[int, nn.Module]) -> Callable[[Any], None]:
    """What makes a schedule run pairs of passes at once, through layers that know of it."""
    overlap = import_module("titanrun.distributed.overlap")
    turns = overlap.take_turns([layer for stage in stages.values() for layer in moe_layers(stage)])
    return partial(overlap.overlap_pairs, turns=turns)
