"""Activation checkpointing: trade memory for a second forward pass of each layer (https://arxiv.org/abs/1604.06174)."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.config import FullActivationCheckpointConfig, NoActivationCheckpointConfig


def keep_all(config: NoActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Leaves the model as it is: every activation stays until the backward pass."""


def recompute_all(config: FullActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Makes each of `model.layers` keep its input only. Names of parameters and hooks on the layers stay as they are."""
    for layer in model.get_submodule("layers").children():
        # an instance attribute, not a wrapper module: a wrapper would put its name into every parameter's name
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=config.preserve_rng_state,
            determinism_check=config.determinism_check,
            debug=config.debug,
            early_stop=config.early_stop,
        )


def is_recomputing() -> bool:
    """Whether this is a forward pass inside a backward pass: backward hooks run without gradients, a recomputation with them."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
