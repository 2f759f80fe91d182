"""Activation checkpointing: recompute activations in the backward pass to save memory.

The method is described in https://arxiv.org/abs/1604.06174.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from titanrun.distributed.config import (
    FullActivationCheckpointConfig,
    MemoryBudgetActivationCheckpointConfig,
    NoActivationCheckpointConfig,
    RecomputingConfig,
    SavedOperation,
    SelectiveActivationCheckpointConfig,
)

# float8 products are counted as those in bf16 are
MATMUL_OPS = frozenset({"aten::mm", "aten::_scaled_mm"})
OPS_BY_OPERATION: Mapping[SavedOperation, frozenset[str]] = {
    "attention": frozenset(
        {
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_attention_math",
            "aten::_scaled_dot_product_fused_attention_overrideable",
            "flex_attention",
            "torch_attn::_varlen_attn",
        }
    ),
    "products": MATMUL_OPS,
    "biased_products": frozenset({"aten::addmm"}),
    "grouped_products": frozenset({"aten::_grouped_mm", "aten::_scaled_grouped_mm"}),
    "activations": frozenset({"aten::silu", "aten::sigmoid", "aten::gelu", "aten::relu"}),
    "top_k": frozenset({"aten::topk"}),
    "max": frozenset({"aten::max"}),
    "reduce_scatter": frozenset({"_c10d_functional::reduce_scatter_tensor"}),
    "all_to_all": frozenset({"_c10d_functional::all_to_all_single"}),
    "compiled": frozenset({"inductor_compiled_code"}),
}
"""PyTorch operators by their name in recipes. every_second_product is counted instead."""


def apply_no_ac(config: NoActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Leave the model as it is: every activation is kept until the backward pass."""


def apply_full_ac(config: FullActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Make each of `model.layers` keep only its input and recompute the rest.

    Parameter names and hooks of the layers do not change.
    """
    for layer in model.get_submodule("layers").children():
        checkpoint_layer(layer, config)


def apply_selective_ac(config: SelectiveActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Make every n-th of `model.layers`, or the cheap operations of each, recompute.

    Layers are counted over the whole model, not over the layers of this rank, so that every layout
    recomputes the same layers.
    """
    for name, layer in model.get_submodule("layers").named_children():
        if config.layer_interval is None:
            shapes = find_linear_shapes(
                layer, f"layers.{name}", config.per_op_sac_force_recompute_mm_shapes_by_fqns
            )
            checkpoint_layer(
                layer,
                config,
                context_fn=partial(create_selective_ac_contexts, shapes, config.per_op_sac_saves),
            )
        elif (int(name) + 1) % config.layer_interval == 0:
            checkpoint_layer(layer, config)


def apply_memory_budget_ac(
    config: MemoryBudgetActivationCheckpointConfig, *, model: nn.Module
) -> None:
    """Let the compiler choose the activations that each layer keeps.

    The compiler chooses when it first compiles a layer. Until then the model is unchanged.
    """
    # imported by name: importing the compiler takes seconds
    settings: Any = import_module("torch._functorch.config")
    settings.activation_memory_budget = config.memory_budget


def checkpoint_layer(layer: nn.Module, config: RecomputingConfig, **options: Any) -> None:
    """Make a layer recompute in the backward pass the activations that it does not keep."""
    # an instance attribute, not a wrapper module: a wrapper would put its name into every
    # parameter's name
    layer.forward = partial(
        checkpoint,
        layer.forward,
        use_reentrant=False,
        preserve_rng_state=config.preserve_rng_state,
        determinism_check=config.determinism_check,
        debug=config.debug,
        early_stop=config.early_stop,
        **options,
    )


def find_linear_shapes(layer: nn.Module, name: str, name_parts: Iterable[str]) -> frozenset[Size]:
    """Return the shapes [in, out] of linear modules whose name contains a given part."""
    name_parts = tuple(name_parts)
    linears = (
        (f"{name}.{path}", module)
        for path, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    )
    return frozenset(
        module.weight.shape[::-1]
        for path, module in linears
        if any(text in path for text in name_parts)
    )


def create_selective_ac_contexts(
    recomputed_shapes: frozenset[Size], saved_operations: Collection[SavedOperation]
) -> Any:
    """Return the contexts of the first pass and of the recomputation of one layer call."""
    # FSDP records profiler ranges for the experts within a layer, more of them in the recomputation
    SAC_IGNORED_OPS.update(
        (
            torch.ops.profiler._record_function_enter_new.default,
            torch.ops.profiler._record_function_exit._RecordFunction,
        )
    )
    return create_selective_checkpoint_contexts(
        SelectiveCheckpointPolicy(recomputed_shapes, saved_operations)
    )


class SelectiveCheckpointPolicy:
    """Policy that selects the operator results to keep in one call of a layer.

    Args:
        recomputed_shapes: shapes [in, out] of right-hand matrices whose products are recomputed and
            not counted.
        saved_operations: operations whose results are kept otherwise.
    """

    def __init__(
        self, recomputed_shapes: frozenset[Size], saved_operations: Collection[SavedOperation]
    ) -> None:
        self.recomputed_shapes = recomputed_shapes
        self.saves_every_second_matmul = "every_second_product" in saved_operations
        self.saved_ops = frozenset(
            kernel for name in saved_operations for kernel in OPS_BY_OPERATION.get(name, ())
        )
        self.matmul_counts = {True: 0, False: 0}

    def __call__(
        self, context: Any, operation: Any, *arguments: Any, **options: Any
    ) -> CheckpointPolicy:
        """Return whether to keep the result of an operation, in the order of either pass."""
        name = operation.name().partition(".")[0]
        if name == "aten::_to_copy" and is_device_to_host_copy(arguments[0], options.get("device")):
            # the host would wait for the device a second time
            return CheckpointPolicy.MUST_SAVE
        if name in MATMUL_OPS:
            return to_checkpoint_policy(
                self.should_save_matmul(name, arguments[1].shape, context.is_recompute)
            )
        return to_checkpoint_policy(name in self.saved_ops)

    def should_save_matmul(self, name: str, shape: Size, is_recompute: bool) -> bool:
        """Return whether to keep this matrix product of the pass."""
        if shape in self.recomputed_shapes:
            return False
        if not self.saves_every_second_matmul:
            return name in self.saved_ops
        self.matmul_counts[is_recompute] += 1
        return self.matmul_counts[is_recompute] % 2 == 1


def is_device_to_host_copy(tensor: Tensor, device: torch.device | None) -> bool:
    """Return whether a copy goes from an accelerator to the host."""
    return device is not None and device.type == "cpu" and tensor.device.type != "cpu"


def to_checkpoint_policy(is_saved: bool) -> CheckpointPolicy:
    """Return MUST_SAVE, or PREFER_RECOMPUTE, which the compiler may override."""
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def is_recomputing() -> bool:
    """Return whether this is a forward pass inside a backward pass.

    Backward hooks run without gradients, a recomputation runs with them.
    """
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
