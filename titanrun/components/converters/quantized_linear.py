"""Linear modules in torchao's quantised forms: trained as if they were (https://arxiv.org/abs/1712.05877), or made so at the end."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.config import QatConfig
from titanrun.components.converters.conversion import Conversion, replace_module
from titanrun.components.converters.linear_modules import (
    Doubt,
    in_compute_dtype,
    named_in,
    sorted_out,
)
from titanrun.components.converters.schemes import IN_GROUPS, Scheme
from titanrun.distributed.torchao_parts import torchao_part


def convert(config: QatConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Swaps linear modules for torchao's, which round weights, and inputs where the scheme has them, in every forward pass."""
    taken, left = quantizable(model, config.scheme, config.group_size, config.filter_fqns)
    infer = torchao_part("quantization.qat.fake_quantize_config")._infer_fake_quantize_configs
    kind = torchao_part("quantization.qat.linear").FakeQuantizedLinear
    for name in taken:
        linear = model.get_submodule(name)
        swapped = kind.from_linear(linear, *infer(torchao_config(config.scheme, config.group_size)))
        # on the meta device torchao makes new ones
        swapped.weight, swapped.bias = linear.weight, linear.bias
        for quantizer in list(swapped._modules):
            # tensor parallelism takes every part of a linear module for one with weights
            vars(swapped)[quantizer] = swapped._modules.pop(quantizer)
        swapped.register_forward_pre_hook(in_compute_dtype)
        replace_module(model, name, swapped)
    return Conversion(
        taken=tuple(taken), left=left, kind=f"{config.scheme}, groups of {config.group_size}"
    )


def quantizable(
    model: nn.Module, scheme: str, group_size: int, leave: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The linear modules that the scheme takes, and the others with the reasons."""
    doubts: list[Doubt] = [named_in(leave), chooses_experts]
    if scheme in IN_GROUPS:
        doubts.append(not_in_groups_of(group_size))
    return sorted_out(model, *doubts)


def chooses_experts(name: str, _: nn.Linear) -> str | None:
    """Leaves routers: what they round away sends tokens to other experts."""
    return "it chooses experts" if ".router." in name else None


def not_in_groups_of(size: int) -> Doubt:
    """Leaves the modules whose rows are not in whole groups."""

    def doubt(_: str, module: nn.Linear) -> str | None:
        columns = module.weight.size(1)
        return None if columns % size == 0 else f"rows of {columns} are not in groups of {size}"

    return doubt


def torchao_config(scheme: Scheme, group_size: int) -> Any:
    """torchao's description of a scheme."""
    torchao = torchao_part("quantization")
    groups = torchao_part("quantization.granularity").PerGroup(group_size)
    if scheme == "int4_weight_only":
        return torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=groups)
    if scheme == "int8_dynamic_activation_int4_weight":
        return torchao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=groups
        )
    plain = {
        "int8_weight_only": torchao.Int8WeightOnlyConfig,
        "int8_dynamic_activation_int8_weight": torchao.Int8DynamicActivationInt8WeightConfig,
        "float8_weight_only": torchao.Float8WeightOnlyConfig,
    }
    return plain[scheme]()


def quantized(weight_OI: Tensor, config: Any) -> Tensor:
    """A matrix as the tensor that torchao makes of it."""
    linear = nn.Linear(weight_OI.size(1), weight_OI.size(0), bias=False, device="meta")
    linear.weight = nn.Parameter(weight_OI.contiguous(), requires_grad=False)
    torchao_part("quantization").quantize_(nn.Sequential(linear), config)
    return linear.weight.detach()
