"""torch.compile of single layers, and the settings that its back ends need."""

import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed import ProcessGroup

from titanrun.config.problems import problem_error

# how its products run depends on token counts, which a compiled graph cannot read
UNCOMPILED_CHILD = "experts"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How layers are compiled.

    Args:
        backend: back end of torch.compile.
        has_fixed_shapes: whether a run has few shapes. Each is compiled for itself then. Otherwise
            a size that changes becomes a variable of the graph.
        max_autotune: whether inductor times several kernels for each product.
    """

    backend: str
    has_fixed_shapes: bool = False
    max_autotune: bool = False

    def compile(self, function: Callable[..., Any], *, fullgraph: bool = False) -> Any:
        """Return the function compiled."""
        return torch.compile(
            function,
            backend=self.backend,
            fullgraph=fullgraph,
            dynamic=False if self.has_fixed_shapes else None,
            options={"max_autotune": True} if self.max_autotune else None,
        )


def compile_layers(
    model: nn.Module, options: CompileOptions, *, experts: Collection[nn.Module]
) -> None:
    """Compile each of `model.layers` into one graph, shared by layers of equal shape.

    Args:
        model: with activation checkpointing applied. Data parallelism comes later, and its hooks
            stay outside of the graphs.
        options: how they are compiled.
        experts: mixture-of-experts modules of the model, whose parts are compiled separately.
    """
    # with checkpointed parts the backward pass must use the graphs of the forward pass, not the
    # graphs that were used last
    frames: Any = torch._C._dynamo.eval_frame
    frames._set_lru_cache(False)
    if experts:
        count_tokens_once()
    for layer in model.get_submodule("layers").children():
        for part in iter_compilable_modules(layer, experts):
            # an instance attribute, not a wrapper module: a wrapper would put its name into every
            # parameter's name
            part.forward = options.compile(part.forward, fullgraph=True)
        compile_functions(layer, backend=options.backend)


def compile_functions(layer: nn.Module, *, backend: str) -> None:
    """Compile the element-wise functions of a layer's experts, which are outside of its graphs.

    The modules name them in `compiled_functions`. Expert parallelism changes the number of slots
    with each pass: beyond torch's limit of recompilations they run uncompiled.
    """
    for module in layer.modules():
        for name, function in getattr(module, "compiled_functions", {}).items():
            setattr(module, name, torch.compile(function, backend=backend))


def iter_compilable_modules(
    module: nn.Module, experts: Collection[nn.Module]
) -> Iterator[nn.Module]:
    """Yield the largest parts that fit one graph: the module itself unless it has experts."""
    if not any(part in experts for part in module.modules()):
        yield module
        return
    for name, part in module.named_children():
        if module not in experts or name != UNCOMPILED_CHILD:
            yield from iter_compilable_modules(part, experts)


def count_tokens_once() -> None:
    """Let a recomputed layer leave its counters alone.

    Experts count their tokens in the forward pass. A graph that a checkpointed layer runs again in
    the backward pass would count them twice.
    """
    settings: Any = import_module("torch._dynamo.config")
    settings.skip_fwd_side_effects_in_bwd_under_checkpoint = True


def emulate_precision_casts() -> None:
    """Make inductor round to bf16 where uncompiled code does.

    It otherwise keeps fp32 between fused operations, and the scales of rows in float8 are those of
    other numbers.
    """
    settings: Any = import_module("torch._inductor.config")
    settings.emulate_precision_casts = True


def allow_second_backward() -> None:
    """Keep the saved tensors of compiled layers instead of reusing their memory.

    Schedules with a split backward pass go backward through a layer twice.
    """
    settings: Any = import_module("torch._functorch.config")
    settings.donated_buffer = False


def check_cpp_compiler() -> None:
    """Raise ProblemsFound if inductor, which writes C++ for a CPU, finds no compiler."""
    # imported by name: it takes seconds, and only inductor on a CPU needs it
    search = import_module("torch._inductor.cpp_builder").get_cpp_compiler
    missing = import_module("torch._inductor.exc").InvalidCxxCompiler
    try:
        search()
    except missing as error:
        message = "compile.backend inductor needs a C++ compiler on a CPU, but none was found"
        raise problem_error(
            "usage",
            message,
            path=("compile", "backend"),
            hint="install g++, or set compile.backend: aot_eager",
        ) from error


def enable_async_tp(group: ProcessGroup) -> None:
    """Make inductor overlap matrix products with the collectives over `group` in chunks."""
    settings: Any = import_module("torch._inductor.config")
    settings._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # the warning says that the call is not needed, but inductor of torch 2.13 skips groups
        # without it
        warnings.simplefilter("ignore", FutureWarning)
        import_module("torch.distributed._symmetric_memory").enable_symm_mem_for_group(
            group.group_name
        )


def raise_async_tp_on_cpu() -> NoReturn:
    """Raise ProblemsFound: PyTorch has no CPU kernel for copies into other ranks' memory."""
    message = (
        "asynchronous tensor parallelism needs memory that other ranks can write to, which "
        "PyTorch does not support on a CPU"
    )
    path = ("parallelism", "enable_async_tensor_parallel")
    raise problem_error(
        "usage", message, path=path, hint="set it to false, or train on accelerators"
    )
