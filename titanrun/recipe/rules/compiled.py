"""Rules about what needs torch.compile."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at

ENABLE, COMPONENTS = ("compile", "enable"), ("compile", "components")
OTHER_AXES = ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree")
BACKENDS = ("inductor", "aot_eager", "eager", "aot_eager_decomp_partition", "cudagraphs")
HELP = 'set compile.enable: true with "model" among compile.components'


def compiles_model(run: Recipe) -> bool:
    """Whether the model's blocks are compiled."""
    return run.compile.enable and "model" in run.compile.components


@rule("async-tp-needs-compile")
def async_tp_needs_compile(run: Recipe) -> Iterator[Finding]:
    """It is the compiler that overlaps tensor-parallel communication with matrix products: enable_async_tensor_parallel needs
    compile.enable with "model" among compile.components."""
    if run.parallelism.tensor_parallel_degree > 1 and run.parallelism.enable_async_tensor_parallel and not compiles_model(run):
        path = at("enable_async_tensor_parallel")
        yield Finding("asynchronous tensor parallelism needs a compiled model", (path, ENABLE, COMPONENTS), help=HELP)


@rule("compile-divides-data-only")
def compile_divides_data_only(run: Recipe) -> Iterator[Finding]:
    """What is compiled works with FSDP, HSDP and DDP; together with tensor, pipeline, context or expert parallelism it is not built in
    this version. Switch one of the two off."""
    for name in OTHER_AXES:
        if run.compile.enable and getattr(run.parallelism, name) > 1:
            message = f"compile together with {name.removesuffix('_degree').replace('_', ' ')}ism is not built in this version"
            yield Finding(message, (ENABLE, at(name)), help=f"set compile.enable: false, or {name}: 1", code="not-built")


@rule("back-end-exists")
def back_end_exists(run: Recipe) -> Iterator[Finding]:
    """compile.backend names one of torch.compile's back ends: inductor makes kernels, aot_eager and eager find mistakes."""
    if run.compile.enable and run.compile.backend not in BACKENDS:
        help = f"those are {', '.join(BACKENDS)}"
        yield Finding(f"there is no back end '{run.compile.backend}'", (("compile", "backend"),), help=help, code="unknown-name")


@rule("compiled-tp-needs-accelerator")
def compiled_tp_needs_accelerator(run: Recipe) -> Iterator[Finding]:
    """On a CPU the backward pass of compiled, tensor-parallel blocks fails inside PyTorch 2.13 with every back end but eager. Compile
    with backend eager, or not the model."""
    if run.device == "cpu" and run.parallelism.tensor_parallel_degree > 1 and compiles_model(run) and run.compile.backend != "eager":
        message = f"tensor-parallel blocks compiled by {run.compile.backend} fail in the backward pass on a CPU"
        places = (("compile", "backend"), ENABLE, at("tensor_parallel_degree"), ("device",))
        yield Finding(message, places, help="set compile.backend: eager, or compile.enable: false")
