"""Rules about what needs torch.compile, and what it needs."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec

from titanrun.config.suggest import closest, listing
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at

ENABLE, COMPONENTS, BACKEND = (
    ("compile", "enable"),
    ("compile", "components"),
    ("compile", "backend"),
)
INDUCTOR = "inductor"
# back ends of PyTorch 2.13 that leave it to PyTorch which activations are kept, and so can keep to a budget
BUDGETING = (
    INDUCTOR,
    "aot_eager",
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_crossref",
)
# all that can be asked for by name; its others need arguments, or exist to fail
BACKENDS = (
    *BUDGETING,
    "eager",
    "cudagraphs",
    "aot_eager_default_partitioner",
    "aot_ts",
    "ts",
    "openxla",
    "openxla_eval",
    "tvm",
    "eager_debug",
    "eager_noexcept",
    "pre_dispatch_eager",
)
PACKAGES = {"tvm": "tvm", "openxla": "torch_xla", "openxla_eval": "torch_xla"}
HELP = 'set compile.enable: true with "model" among compile.components'
ASYNC = at("enable_async_tensor_parallel")
BUDGET = ("activation_checkpoint", "name")


def compiles_model(run: Recipe) -> bool:
    """Whether the model's blocks are compiled."""
    return run.compile.enable and "model" in run.compile.components


def overlaps_tensor_parallelism(run: Recipe) -> bool:
    """Whether tensor-parallel communication is to run during matrix products."""
    return (
        run.parallelism.tensor_parallel_degree > 1 and run.parallelism.enable_async_tensor_parallel
    )


@rule("async-tp-needs-compile")
def async_tp_needs_compile(run: Recipe) -> Iterator[Finding]:
    """It is the compiler that overlaps tensor-parallel communication with matrix products: enable_async_tensor_parallel needs
    compile.enable with "model" among compile.components, and the back end inductor."""
    if not overlaps_tensor_parallelism(run):
        return
    if not compiles_model(run):
        yield Finding(
            "asynchronous tensor parallelism needs a compiled model",
            (ASYNC, ENABLE, COMPONENTS),
            help=HELP,
        )
    elif run.compile.backend != INDUCTOR:
        message = f"asynchronous tensor parallelism is made by inductor, and the back end is {run.compile.backend}"
        yield Finding(
            message,
            (ASYNC, BACKEND),
            help="set compile.backend: inductor, or enable_async_tensor_parallel: false",
        )


@rule("async-tp-needs-sequence-parallel")
def async_tp_needs_sequence_parallel(run: Recipe) -> Iterator[Finding]:
    """What inductor overlaps with products is gathering and scattering pieces of the stream, which enable_sequence_parallel: false has
    none of. Switch it on, or train without enable_async_tensor_parallel."""
    if overlaps_tensor_parallelism(run) and not run.parallelism.enable_sequence_parallel:
        message = "asynchronous tensor parallelism overlaps the collectives of sequence parallelism, which is off"
        places = (at("enable_sequence_parallel"), ASYNC)
        yield Finding(
            message,
            places,
            help="set enable_sequence_parallel: true, or enable_async_tensor_parallel: false",
        )


@rule("async-tp-needs-accelerator")
def async_tp_needs_accelerator(run: Recipe) -> Iterator[Finding]:
    """Asynchronous tensor parallelism copies between the memories of accelerators (PyTorch's symmetric memory), which a CPU does not
    have. Train on CUDA, or without it."""
    if overlaps_tensor_parallelism(run) and run.device == "cpu":
        message = "asynchronous tensor parallelism needs the symmetric memory of accelerators, and device is cpu"
        yield Finding(
            message,
            (ASYNC, ("device",)),
            help="set enable_async_tensor_parallel: false, or device: gpu",
        )


@rule("budget-needs-compile")
def budget_needs_compile(run: Recipe) -> Iterator[Finding]:
    """It is the compiler that chooses what to keep within a budget: activation_checkpoint: memory_budget needs compile.enable with
    "model" among compile.components, and a back end that lets PyTorch choose."""
    if run.activation_checkpoint.name != "memory_budget":
        return
    if not compiles_model(run):
        message = "the compiler chooses what is kept within a memory budget, and the model is not compiled"
        yield Finding(
            message,
            (BUDGET, ENABLE, COMPONENTS),
            help=f"{HELP}, or activation_checkpoint: selective",
        )
    elif run.compile.backend in BACKENDS and run.compile.backend not in BUDGETING:
        message = (
            f"back end {run.compile.backend} keeps every activation, whatever the memory budget"
        )
        yield Finding(message, (BACKEND, BUDGET), help=f"use {listing(BUDGETING)}")


@rule("back-end-exists")
def back_end_exists(run: Recipe) -> Iterator[Finding]:
    """compile.backend names one of torch.compile's back ends, or one that an installed package adds to them: inductor makes kernels,
    aot_eager and eager find mistakes."""
    name = run.compile.backend
    if not run.compile.enable or name in BACKENDS:
        return
    installed = entry_points(group="torch_dynamo_backends").names
    if name not in installed:
        known = (*BACKENDS, *sorted(installed))
        meant = closest(name, known)
        help = (
            f"did you mean '{meant}'?"
            if meant
            else f"those are {listing(known, last='and', most=len(known))}"
        )
        yield Finding(f"there is no back end '{name}'", (BACKEND,), help=help, code="unknown-name")


@rule("back-end-is-installed", level="environment")
def back_end_is_installed(run: Recipe) -> Iterator[Finding]:
    """Some back ends of torch.compile belong to packages of their own. Install the package, or choose another back end."""
    package = PACKAGES.get(run.compile.backend)
    if run.compile.enable and package is not None and find_spec(package) is None:
        message = (
            f"back end {run.compile.backend} needs the package '{package}', which is not installed"
        )
        yield Finding(
            message, (BACKEND,), help="install it, or use compile.backend: inductor", code="usage"
        )
