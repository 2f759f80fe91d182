"""The model of a run, allocated on its device with its first weights, and the engine that trains it."""

import logging

import torch
from torch import nn

from titanrun.components.metrics.recorder import record
from titanrun.distributed.dtypes import default_dtype
from titanrun.distributed.meta_device import allocate, on_meta_device
from titanrun.distributed.precision import Precision
from titanrun.distributed.seeds import generator_for
from titanrun.models.shared.moe_balance import ExpertBalance, moe_layers
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine

log = logging.getLogger(__name__)


def build_model(recipe: Recipe, precision: Precision) -> nn.Module:
    """The model on the meta device, rewritten by the converters, its layers wrapped for recomputation if that is wanted."""
    with on_meta_device(), default_dtype(precision.storage):
        model: nn.Module = recipe.model.builder()(recipe.model, seq_len=longest_row(recipe))
    for converter in recipe.converters:
        converter.builder()(converter, model=model)
    if recipe.model.print_after_conversion:
        log.info("%s", model)
    for layer in moe_layers(model):
        layer.deals_in_turn = recipe.debug.moe_force_load_balance
    recipe.activation_checkpoint.builder()(recipe.activation_checkpoint, model=model)
    return model


def longest_row(recipe: Recipe) -> int:
    """Tokens of the longest row that the model will see."""
    if not recipe.validation.enable:
        return recipe.training.seq_len
    assert recipe.validation.seq_len != "auto"
    return max(recipe.training.seq_len, recipe.validation.seq_len)


def materialise(model: nn.Module, *, device: torch.device, seed: int) -> None:
    """Allocates the model on the device and draws its weights, from a generator of their own: the same ones in every run."""
    allocate(model, device)
    model.init_weights(generator=generator_for(seed, device))
    model.train()


def build_engine(recipe: Recipe, model: nn.Module, *, device: torch.device, precision: Precision) -> Engine:
    """Optimizer, schedule and loss around the model."""
    optimizer = recipe.optimizer.builder()(recipe.optimizer, parameters=list(model.named_parameters()))
    layers = moe_layers(model)
    if layers:
        ExpertBalance(layers).watch(optimizer, record)
    schedule = recipe.lr_scheduler.builder()(recipe.lr_scheduler)
    loss = recipe.loss.builder()(recipe.loss)
    return Engine(model, optimizer, schedule, loss, device=device, precision=precision, max_norm=recipe.training.max_norm)
