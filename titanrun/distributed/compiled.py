"""torch.compile of the layers of a model, one by one."""

from collections.abc import Collection, Iterator

import torch
from torch import nn

# token counts decide how its products are run, which a compiled graph cannot
UNCOMPILED = "experts"


def compile_layers(model: nn.Module, *, backend: str, experts: Collection[nn.Module]) -> None:
    """Compiles each of `model.layers` into one graph, which layers of one shape share.

    Args:
        model: with checkpointed layers already; data parallelism comes after, and its hooks stay outside of the graphs.
        backend: of torch.compile.
        experts: the mixtures of experts in it, of which the parts are compiled.
    """
    for layer in model.get_submodule("layers").children():
        for part in compiled_whole(layer, experts):
            # an instance attribute, not a wrapper module: a wrapper would put its name into every parameter's name
            part.forward = torch.compile(part.forward, backend=backend, fullgraph=True)


def compiled_whole(module: nn.Module, experts: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The largest parts of a module that one graph can hold: itself, unless it has experts."""
    if not any(part in experts for part in module.modules()):
        yield module
        return
    for name, part in module.named_children():
        if module not in experts or name != UNCOMPILED:
            yield from compiled_whole(part, experts)
