"""Linear modules in float8, by torchao: numbers are rounded with scales of the moment, weights stay in high precision."""

from dataclasses import replace
from typing import Any

from torch import nn

from titanrun.components.converters.config import Float8LinearConfig
from titanrun.components.converters.conversion import Conversion
from titanrun.components.converters.linear_modules import (
    Doubt,
    in_compute_dtype,
    named_in,
    not_in_blocks_of,
    sorted_out,
)
from titanrun.distributed.torchao_parts import torchao_part


def convert(config: Float8LinearConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Swaps linear modules for torchao's Float8Linear; the names of parameters stay."""
    float8 = torchao_part("float8")
    doubts = [named_in(config.filter_fqns), not_in_blocks_of(config.block)]
    if config.auto_filter_small_kn:
        doubts.append(too_small(float8._auto_filter_for_recipe(config.recipe_name, [])))
    taken, left = sorted_out(model, *doubts)
    gathers = config.enable_fsdp_float8_all_gather and shards > 1
    chosen = set(taken)
    float8.convert_to_float8_training(
        model,
        module_filter_fn=lambda _, name: name in chosen,
        config=replace(
            float8.Float8LinearConfig.from_recipe_name(config.recipe_name),
            enable_fsdp_float8_all_gather=gathers,
            emulate=config.emulate,
        ),
    )
    for name in taken:
        model.get_submodule(name).register_forward_pre_hook(in_compute_dtype)
    precomputes = config.precompute_float8_dynamic_scale_for_fsdp and gathers
    kind = f"float8 {config.recipe_name}{', emulated' if config.emulate else ''}"
    rescale = float8.precompute_float8_dynamic_scale_for_fsdp if precomputes else None
    return Conversion(taken=tuple(taken), left=left, kind=kind, on_new_weights=rescale)


def too_small(gains: Any) -> Doubt:
    """Leaves the modules that torchao's table of measurements finds no gain for."""

    def doubt(name: str, module: nn.Linear) -> str | None:
        rows, columns = module.weight.shape
        return None if gains(module, name) else f"{rows} x {columns} is too small to gain"

    return doubt
