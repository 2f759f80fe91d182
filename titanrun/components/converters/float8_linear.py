"""Linear modules in float8, by torchao.

Numbers are rounded with dynamic scales. Weights stay in high precision.
"""

from dataclasses import replace
from typing import Any

from torch import nn

from titanrun.components.converters.config import Float8LinearConfig
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.converters.linear_modules import (
    SkipRule,
    has_name_containing,
    has_unaligned_shape,
    select_linear_modules,
)
from titanrun.distributed.torchao_import import import_torchao


def convert(config: Float8LinearConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Replace linear modules by torchao's Float8Linear; parameters keep their names."""
    float8 = import_torchao("float8")
    rules = [has_name_containing(config.filter_fqns), has_unaligned_shape(config.alignment)]
    if config.auto_filter_small_kn:
        rules.append(is_too_small_for_float8(float8._auto_filter_for_recipe(config.scales, [])))
    taken, left = select_linear_modules(model, *rules)
    gathers = config.enable_fsdp_float8_all_gather and shards > 1
    chosen = set(taken)
    float8.convert_to_float8_training(
        model,
        module_filter_fn=lambda _, name: name in chosen,
        config=replace(
            float8.Float8LinearConfig.from_recipe_name(config.scales),
            enable_fsdp_float8_all_gather=gathers,
            emulate=config.emulate,
        ),
    )
    precomputes = config.precompute_float8_dynamic_scale_for_fsdp and gathers
    kind = f"float8 {config.scales}{', emulated' if config.emulate else ''}"
    rescale = float8.precompute_float8_dynamic_scale_for_fsdp if precomputes else None
    return ConversionReport(
        converted=tuple(taken), skipped=left, kind=kind, on_weights_changed=rescale
    )


def is_too_small_for_float8(gains: Any) -> SkipRule:
    """Build a rule that skips modules without a gain in torchao's table of measurements."""

    def rule(name: str, module: nn.Linear) -> str | None:
        rows, columns = module.weight.shape
        return None if gains(module, name) else f"{rows} x {columns} is too small to gain"

    return rule
