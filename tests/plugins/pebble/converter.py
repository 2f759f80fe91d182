"""Freezes modules by name."""

from torch import nn

from pebble.configs import FreezeConfig
from titanrun.components.converters.conversion_report import ConversionReport


def freeze(config: FreezeConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Freeze the weights of the named modules."""
    found = {
        name: module
        for name, module in model.named_modules()
        if any(part in name for part in config.modules)
    }
    for module in found.values():
        module.requires_grad_(False)
    return ConversionReport(converted=tuple(found), kind="frozen")
