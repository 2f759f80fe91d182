"""Rules about what needs torch.compile."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at

ENABLE, COMPONENTS = ("compile", "enable"), ("compile", "components")
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


@rule("compiled-tp-needs-accelerator")
def compiled_tp_needs_accelerator(run: Recipe) -> Iterator[Finding]:
    """On a CPU the backward pass of compiled, tensor-parallel blocks fails inside PyTorch 2.13 with every back end but eager. Compile
    with backend eager, or not the model."""
    if run.device == "cpu" and run.parallelism.tensor_parallel_degree > 1 and compiles_model(run) and run.compile.backend != "eager":
        message = f"tensor-parallel blocks compiled by {run.compile.backend} fail in the backward pass on a CPU"
        places = (("compile", "backend"), ENABLE, at("tensor_parallel_degree"), ("device",))
        yield Finding(message, places, help="set compile.backend: eager, or compile.enable: false")
