"""The model of a run, laid out over the ranks and allocated with its first weights, and the engine that trains it."""

import logging
from importlib import import_module

import torch
from torch import nn

from titanrun.components.metrics.recorder import record
from titanrun.distributed.degrees import pieces_per_rank
from titanrun.distributed.device import CPU
from titanrun.distributed.dtypes import default_dtype, dtype_named
from titanrun.distributed.mesh import Meshes
from titanrun.distributed.meta_device import allocate, on_meta_device
from titanrun.distributed.precision import Precision
from titanrun.distributed.rows import RowSharing
from titanrun.distributed.seeds import WeightGenerator
from titanrun.models.shared.attention import BACKENDS
from titanrun.models.shared.family import family_module
from titanrun.models.shared.moe_balance import ExpertBalance, moe_layers
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine

log = logging.getLogger(__name__)


def build_model(recipe: Recipe, precision: Precision) -> nn.Module:
    """The model on the meta device, rewritten by the converters."""
    with on_meta_device(), default_dtype(precision.storage):
        model: nn.Module = recipe.model.builder()(recipe.model, seq_len=longest_row(recipe))
    for converter in recipe.converters:
        converter.builder()(converter, model=model)
    if recipe.model.print_after_conversion:
        log.info("%s", model)
    for layer in moe_layers(model):
        layer.deals_in_turn = recipe.debug.moe_force_load_balance
    return model


def lay_out(recipe: Recipe, model: nn.Module, *, meshes: Meshes | None, precision: Precision) -> Precision:
    """Lays the meta model out over the ranks. Gives the precision that is left for the forward pass.

    The order matters: activation checkpointing wraps what is split over ranks, and data parallelism what is checkpointed, so that
    a recomputed layer finds its weights gathered.
    """
    split_over_tensor_ranks(recipe, model, meshes)
    share_over_context_ranks(recipe, model, meshes)
    recipe.activation_checkpoint.builder()(recipe.activation_checkpoint, model=model)
    if meshes is None:
        return precision
    # by name: DTensor takes a second to import, which one process alone need not spend
    fsdp = import_module("titanrun.distributed.fsdp")
    data_parallel = fsdp.DataParallel(
        reshard=recipe.parallelism.fsdp_reshard_after_forward,
        precision=precision,
        reduce=dtype_named(recipe.training.mixed_precision_reduce),
        offload=recipe.training.enable_cpu_offload,
    )
    is_shared: bool = fsdp.share_over_ranks(model, data_parallel, meshes)
    return precision.without_autocast if is_shared else precision


def split_over_tensor_ranks(recipe: Recipe, model: nn.Module, meshes: Meshes | None) -> None:
    """Splits the matrices of the model as its family plans."""
    if meshes is None or meshes.degrees.tensor == 1:
        return
    tensor_parallel = import_module("titanrun.distributed.tensor_parallel")
    how = tensor_parallel.TensorParallel(
        sequence=recipe.parallelism.enable_sequence_parallel,
        vocabulary=recipe.loss.takes_split_logits and not recipe.parallelism.disable_loss_parallel,
    )
    plan = family_module(type(recipe.model), "parallelize").TENSOR_PLAN
    tensor_parallel.split_matrices(model, plan, how, meshes)


def share_over_context_ranks(recipe: Recipe, model: nn.Module, meshes: Meshes | None) -> None:
    """Lets attention see the whole rows that several ranks share."""
    rows = row_sharing(recipe, meshes)
    if rows is not None:
        share_rows = import_module("titanrun.distributed.context_parallel").share_rows
        share_rows(model, rows, recipe.parallelism.context_parallel_rotate_method, attention=tuple(BACKENDS.values()))


def row_sharing(recipe: Recipe, meshes: Meshes | None) -> RowSharing | None:
    """How context-parallel ranks share rows; None where each rank has whole ones."""
    group = None if meshes is None else meshes.group("cp")
    return None if group is None else RowSharing(group, pieces_per_rank(recipe.parallelism))


def longest_row(recipe: Recipe) -> int:
    """Tokens of the longest row that the model will see."""
    if not recipe.validation.enable:
        return recipe.training.seq_len
    assert recipe.validation.seq_len != "auto"
    return max(recipe.training.seq_len, recipe.validation.seq_len)


def materialise(model: nn.Module, *, device: torch.device, seed: int, offload: bool = False) -> None:
    """Allocates the model and draws its weights, from a generator of their own: the same ones in every run and every layout.

    Args:
        model: laid out already.
        device: where it computes, and where the weights are drawn.
        seed: of the weights.
        offload: whether weights live in host memory.
    """
    allocate(model, device, weights_on=CPU if offload else device)
    model.init_weights(generator=WeightGenerator(seed, device, model))
    model.train()


def build_engine(recipe: Recipe, model: nn.Module, *, device: torch.device, precision: Precision, meshes: Meshes | None) -> Engine:
    """Optimizer, schedule and loss around the model."""
    optimizer = recipe.optimizer.builder()(recipe.optimizer, parameters=list(model.named_parameters()))
    layers = moe_layers(model)
    if layers:
        over_ranks = {} if meshes is None else {"reduce": lambda counts_LE: meshes.sum_(counts_LE, "loss")}
        ExpertBalance(layers, **over_ranks).watch(optimizer, record)
    schedule = recipe.lr_scheduler.builder()(recipe.lr_scheduler)
    loss = recipe.loss.builder()(recipe.loss)
    max_norm, rows = recipe.training.max_norm, row_sharing(recipe, meshes)
    return Engine(model, optimizer, schedule, loss, device=device, precision=precision, max_norm=max_norm, meshes=meshes, rows=rows)
