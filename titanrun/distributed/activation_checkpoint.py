"""Activation checkpointing: trade memory for a second forward pass of each layer (https://arxiv.org/abs/1604.06174)."""

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
    Operation,
    RecomputingConfig,
    SelectiveActivationCheckpointConfig,
)

PRODUCT = "aten::mm"
KERNELS: Mapping[Operation, frozenset[str]] = {
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
    "products": frozenset({PRODUCT}),
    "biased_products": frozenset({"aten::addmm"}),
    "grouped_products": frozenset({"aten::_grouped_mm"}),
    "activations": frozenset({"aten::silu", "aten::sigmoid", "aten::gelu", "aten::relu"}),
    "top_k": frozenset({"aten::topk"}),
    "max": frozenset({"aten::max"}),
    "reduce_scatter": frozenset({"_c10d_functional::reduce_scatter_tensor"}),
    "all_to_all": frozenset({"_c10d_functional::all_to_all_single"}),
    "compiled": frozenset({"inductor_compiled_code"}),
}
"""PyTorch's operations by the name that a recipe has for them; every_second_product is counted."""


def keep_all(config: NoActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Leaves the model as it is: every activation stays until the backward pass."""


def recompute_all(config: FullActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Makes each of `model.layers` keep its input only. Names of parameters and hooks on the layers stay as they are."""
    for layer in model.get_submodule("layers").children():
        recompute(layer, config)


def recompute_some(config: SelectiveActivationCheckpointConfig, *, model: nn.Module) -> None:
    """Makes every n-th of `model.layers` keep its input only, or each of them what is dear to compute.

    The n-th layer of the whole model, whichever of them this rank has, so that every layout recomputes the same.
    """
    for name, layer in model.get_submodule("layers").named_children():
        if config.every is None:
            shapes = product_shapes(
                layer, f"layers.{name}", config.per_op_sac_force_recompute_mm_shapes_by_fqns
            )
            recompute(
                layer,
                config,
                context_fn=partial(choosing_contexts, shapes, config.per_op_sac_saves),
            )
        elif (int(name) + 1) % config.every == 0:
            recompute(layer, config)


def recompute_for_budget(
    config: MemoryBudgetActivationCheckpointConfig, *, model: nn.Module
) -> None:
    """Lets the compiler choose what a layer keeps, when it first meets it: until then nothing about the model changes."""
    # by name: it is the compiler's, and importing that takes seconds
    import_module("torch._functorch.config").activation_memory_budget = config.memory_budget


def recompute(layer: nn.Module, config: RecomputingConfig, **options: Any) -> None:
    """Makes a layer compute again, in the backward pass, what it does not keep."""
    # an instance attribute, not a wrapper module: a wrapper would put its name into every parameter's name
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


def product_shapes(layer: nn.Module, name: str, wanted: Iterable[str]) -> frozenset[Size]:
    """The shapes [in, out] of the linear modules whose names have one of the texts in them."""
    wanted = tuple(wanted)
    linears = (
        (f"{name}.{path}", module)
        for path, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    )
    return frozenset(
        module.weight.shape[::-1]
        for path, module in linears
        if any(text in path for text in wanted)
    )


def choosing_contexts(shapes: frozenset[Size], saves: Collection[Operation]) -> Any:
    """What the first and the second pass of one call of a layer run in."""
    # FSDP marks for the profiler what it does for the experts within a layer, and does more of it in the second pass
    SAC_IGNORED_OPS.update(
        (
            torch.ops.profiler._record_function_enter_new.default,
            torch.ops.profiler._record_function_exit._RecordFunction,
        )
    )
    return create_selective_checkpoint_contexts(Choice(shapes, saves))


class Choice:
    """What is kept of one call of a layer.

    Args:
        shapes: of right-hand matrices whose products are computed again, and not counted.
        saves: whose results are kept otherwise.
    """

    def __init__(self, shapes: frozenset[Size], saves: Collection[Operation]) -> None:
        self.shapes = shapes
        self.counts_products = "every_second_product" in saves
        self.kept = frozenset(kernel for name in saves for kernel in KERNELS.get(name, ()))
        self.products = {True: 0, False: 0}

    def __call__(
        self, context: Any, operation: Any, *arguments: Any, **options: Any
    ) -> CheckpointPolicy:
        """For each operation of either pass, in order, whether its result is kept."""
        name = operation.name().partition(".")[0]
        if name == "aten::_to_copy" and leaves_device(arguments[0], options.get("device")):
            # the host would wait for the device a second time
            return CheckpointPolicy.MUST_SAVE
        if name == PRODUCT:
            return saved_if(self.keeps_product(arguments[1].shape, is_second=context.is_recompute))
        return saved_if(name in self.kept)

    def keeps_product(self, shape: Size, *, is_second: bool) -> bool:
        """Whether this product of the pass is one that is kept."""
        if shape in self.shapes:
            return False
        if not self.counts_products:
            return PRODUCT in self.kept
        self.products[is_second] += 1
        return self.products[is_second] % 2 == 1


def leaves_device(tensor: Tensor, device: torch.device | None) -> bool:
    """Whether a copy goes from an accelerator to the host."""
    return device is not None and device.type == "cpu" and tensor.device.type != "cpu"


def saved_if(is_kept: bool) -> CheckpointPolicy:
    """Kept, or computed again unless the compiler knows better."""
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def is_recomputing() -> bool:
    """Whether this is a forward pass inside a backward pass: backward hooks run without gradients, a recomputation with them."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()
