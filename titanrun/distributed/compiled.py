"""torch.compile of the layers of a model, one by one, and what its back ends need."""

import warnings
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import NoReturn

import torch
from torch import nn
from torch.distributed import ProcessGroup

from titanrun.config.problems import fail

# token counts decide how its products are run, which a compiled graph cannot
UNCOMPILED = "experts"


def compile_layers(model: nn.Module, *, backend: str, experts: Collection[nn.Module]) -> None:
    """Compiles each of `model.layers` into one graph, which layers of one shape share.

    Args:
        model: with checkpointed layers already; data parallelism comes after, and its hooks stay outside of the graphs.
        backend: of torch.compile.
        experts: the mixtures of experts in it, of which the parts are compiled.
    """
    # with checkpointed parts the backward pass must meet the graphs that the forward pass met, not those that were used last
    torch._C._dynamo.eval_frame._set_lru_cache(False)
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


def allow_second_backward() -> None:
    """Keeps what a compiled layer saved until it is gone, instead of writing over it: some pipelines go backward through it in halves."""
    import_module("torch._functorch.config").donated_buffer = False


def refuse_missing_compiler() -> None:
    """Raises ProblemsFound where inductor, which writes C++ for a CPU, finds no compiler for it."""
    # by name: it takes seconds, and only inductor on a CPU needs it
    search = import_module("torch._inductor.cpp_builder").get_cpp_compiler
    missing = import_module("torch._inductor.exc").InvalidCxxCompiler
    try:
        search()
    except missing as error:
        message = "back end inductor needs a C++ compiler for a CPU, and there is none"
        raise fail(
            "usage",
            message,
            path=("compile", "backend"),
            help="install g++, or set compile.backend: aot_eager",
        ) from error


def overlap_tensor_parallelism(group: ProcessGroup) -> None:
    """Lets inductor split the products beside collectives over `group`, and run each piece while the next one travels."""
    import_module("torch._inductor.config")._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # it says that nobody need call it, but inductor of torch 2.13 passes over groups for which nobody did
        warnings.simplefilter("ignore", FutureWarning)
        import_module("torch.distributed._symmetric_memory").enable_symm_mem_for_group(
            group.group_name
        )


def refuse_overlap() -> NoReturn:
    """Raises ProblemsFound: the pieces travel by copies into the memory of other ranks, for which PyTorch has no CPU kernel."""
    message = "asynchronous tensor parallelism needs memory that other ranks can write to, and PyTorch has none on a CPU"
    path = ("parallelism", "enable_async_tensor_parallel")
    raise fail("usage", message, path=path, help="set it to false, or train on accelerators")
