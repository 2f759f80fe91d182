"""Linear modules in torchao's quantized formats.

They are trained as if quantized (https://arxiv.org/abs/1712.05877), or quantized at the end.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.config import QatConfig
from titanrun.components.converters.conversion_report import ConversionReport, replace_module
from titanrun.components.converters.linear_modules import (
    SkipRule,
    has_name_containing,
    select_linear_modules,
)
from titanrun.components.converters.quantization_config import GROUPED_SCHEMES, QuantizationScheme
from titanrun.distributed.torchao_import import import_torchao


def convert(config: QatConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Replace linear modules by torchao's fake-quantized ones.

    These round weights, and inputs if the scheme quantizes them, in every forward pass.
    """
    taken, left = select_quantizable_modules(
        model, config.scheme, config.group_size, config.filter_fqns
    )
    infer = import_torchao("quantization.qat.fake_quantize_config")._infer_fake_quantize_configs
    kind = import_torchao("quantization.qat.linear").FakeQuantizedLinear
    for name in taken:
        linear = model.get_submodule(name)
        swapped = kind.from_linear(
            linear, *infer(build_torchao_config(config.scheme, config.group_size))
        )
        # on the meta device torchao creates new ones
        swapped.weight, swapped.bias = linear.weight, linear.bias
        for quantizer in list(swapped._modules):
            # tensor parallelism treats every child of a linear module as one with weights
            vars(swapped)[quantizer] = swapped._modules.pop(quantizer)
        replace_module(model, name, swapped)
    return ConversionReport(
        converted=tuple(taken), skipped=left, kind=f"{config.scheme}, groups of {config.group_size}"
    )


def select_quantizable_modules(
    model: nn.Module, scheme: str, group_size: int, filter_fqns: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the linear modules that the scheme supports, and the others with the reasons."""
    rules: list[SkipRule] = [has_name_containing(filter_fqns), is_router]
    if scheme in GROUPED_SCHEMES:
        rules.append(has_unaligned_rows(group_size))
    return select_linear_modules(model, *rules)


def is_router(name: str, _: nn.Linear) -> str | None:
    """Skip routers: rounding would send tokens to other experts."""
    return "it is a router" if ".router." in name else None


def has_unaligned_rows(size: int) -> SkipRule:
    """Build a rule that skips modules whose rows do not consist of whole groups."""

    def rule(_: str, module: nn.Linear) -> str | None:
        columns = module.weight.size(1)
        return None if columns % size == 0 else f"{columns} columns are not divisible by {size}"

    return rule


def build_torchao_config(scheme: QuantizationScheme, group_size: int) -> Any:
    """Return torchao's config of a scheme."""
    torchao = import_torchao("quantization")
    groups = import_torchao("quantization.granularity").PerGroup(group_size)
    int4: torch.dtype = torch.int4  # type: ignore[attr-defined]  # torch's stubs lack it
    if scheme == "int4_weight_only":
        return torchao.IntxWeightOnlyConfig(weight_dtype=int4, granularity=groups)
    if scheme == "int8_dynamic_activation_int4_weight":
        return torchao.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=int4, weight_granularity=groups
        )
    plain = {
        "int8_weight_only": torchao.Int8WeightOnlyConfig,
        "int8_dynamic_activation_int8_weight": torchao.Int8DynamicActivationInt8WeightConfig,
        "float8_weight_only": torchao.Float8WeightOnlyConfig,
    }
    return plain[scheme]()


def quantize_weight(weight_OI: Tensor, config: Any) -> Tensor:
    """Quantize a matrix with torchao."""
    linear = nn.Linear(weight_OI.size(1), weight_OI.size(0), bias=False, device="meta")
    linear.weight = nn.Parameter(weight_OI.contiguous(), requires_grad=False)
    import_torchao("quantization").quantize_(nn.Sequential(linear), config)
    return linear.weight.detach()
