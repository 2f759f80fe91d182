"""Rules about torch.compile and the features that need it."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec

from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rule

ENABLE, COMPONENTS, BACKEND = (
    ("compile", "enable"),
    ("compile", "components"),
    ("compile", "backend"),
)
INDUCTOR = "inductor"
# back ends of PyTorch 2.13 that let PyTorch choose which activations to keep within a budget
BUDGET_BACKENDS = (
    INDUCTOR,
    "aot_eager",
    "aot_eager_decomp_partition",
    "aot_eager_decomp_partition_crossref",
)
# all that can be used by name; the others of PyTorch need arguments, or fail on purpose
BACKENDS = (
    *BUDGET_BACKENDS,
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
ASYNC = get_parallelism_path("enable_async_tensor_parallel")
BUDGET = ("activation_checkpoint", "name")


def compiles_model(run: Recipe) -> bool:
    """Return whether the model's blocks are compiled."""
    return run.compile.enable and "model" in run.compile.components


def uses_async_tensor_parallel(run: Recipe) -> bool:
    """Return whether tensor-parallel communication overlaps matrix products."""
    return (
        run.parallelism.tensor_parallel_degree > 1 and run.parallelism.enable_async_tensor_parallel
    )


@rule("async-tp-needs-compile")
def async_tp_needs_compile(run: Recipe) -> Iterator[RuleViolation]:
    """Require a compiled model for enable_async_tensor_parallel.

    The compiler overlaps tensor-parallel communication with matrix products:
    enable_async_tensor_parallel needs compile.enable with "model" among compile.components, and the
    back end inductor.
    """
    if not uses_async_tensor_parallel(run):
        return
    if not compiles_model(run):
        yield RuleViolation(
            "enable_async_tensor_parallel needs a compiled model",
            (ASYNC, ENABLE, COMPONENTS),
            hint=HELP,
        )
    elif run.compile.backend != INDUCTOR:
        message = (
            "enable_async_tensor_parallel needs back end inductor, but compile.backend is "
            f"{run.compile.backend}"
        )
        yield RuleViolation(
            message,
            (ASYNC, BACKEND),
            hint="set compile.backend: inductor, or enable_async_tensor_parallel: false",
        )


@rule("async-tp-needs-sequence-parallel")
def async_tp_needs_sequence_parallel(run: Recipe) -> Iterator[RuleViolation]:
    """Require sequence parallelism for enable_async_tensor_parallel.

    inductor overlaps matrix products with gathering and scattering pieces of the residual stream,
    which do not happen with enable_sequence_parallel: false. Switch it on, or train without
    enable_async_tensor_parallel.
    """
    if uses_async_tensor_parallel(run) and not run.parallelism.enable_sequence_parallel:
        message = (
            "enable_async_tensor_parallel needs sequence parallelism, but "
            "enable_sequence_parallel is false"
        )
        places = (get_parallelism_path("enable_sequence_parallel"), ASYNC)
        yield RuleViolation(
            message,
            places,
            hint="set enable_sequence_parallel: true, or enable_async_tensor_parallel: false",
        )


@rule("async-tp-needs-accelerator")
def async_tp_needs_accelerator(run: Recipe) -> Iterator[RuleViolation]:
    """Require an accelerator for enable_async_tensor_parallel.

    It copies between the memories of accelerators (PyTorch's symmetric memory), which a CPU does
    not support. Train on CUDA, or without it.
    """
    if uses_async_tensor_parallel(run) and run.device == "cpu":
        message = (
            "enable_async_tensor_parallel needs an accelerator with symmetric memory, but "
            "device is cpu"
        )
        yield RuleViolation(
            message,
            (ASYNC, ("device",)),
            hint="set enable_async_tensor_parallel: false, or device: gpu",
        )


@rule("budget-needs-compile")
def budget_needs_compile(run: Recipe) -> Iterator[RuleViolation]:
    """Require a compiled model for activation_checkpoint: memory_budget.

    The compiler chooses the activations to keep within a budget: it needs compile.enable with
    "model" among compile.components, and a back end that lets PyTorch choose.
    """
    if run.activation_checkpoint.name != "memory_budget":
        return
    if not compiles_model(run):
        message = "activation_checkpoint memory_budget needs a compiled model"
        yield RuleViolation(
            message,
            (BUDGET, ENABLE, COMPONENTS),
            hint=f"{HELP}, or activation_checkpoint: selective",
        )
    elif run.compile.backend in BACKENDS and run.compile.backend not in BUDGET_BACKENDS:
        message = (
            f"back end {run.compile.backend} ignores the memory budget and keeps every activation"
        )
        yield RuleViolation(
            message, (BACKEND, BUDGET), hint=f"use {format_word_list(BUDGET_BACKENDS)}"
        )


@rule("back-end-exists")
def back_end_exists(run: Recipe) -> Iterator[RuleViolation]:
    """Require compile.backend to be a known back end of torch.compile.

    It is one of PyTorch's back ends, or one that an installed package adds. inductor generates
    kernels; aot_eager and eager help to find errors.
    """
    name = run.compile.backend
    if not run.compile.enable or name in BACKENDS:
        return
    installed = entry_points(group="torch_dynamo_backends").names
    if name not in installed:
        known = (*BACKENDS, *sorted(installed))
        closest = find_closest(name, known)
        hint = (
            f"did you mean '{closest}'?"
            if closest
            else f"use {format_word_list(known, max_words=len(known))}"
        )
        yield RuleViolation(
            f"unknown back end '{name}'", (BACKEND,), hint=hint, code="unknown-name"
        )


@rule("back-end-is-installed", level="environment")
def back_end_is_installed(run: Recipe) -> Iterator[RuleViolation]:
    """Require the package of the torch.compile back end to be installed.

    Some back ends belong to separate packages. Install the package, or choose another back end.
    """
    package = PACKAGES.get(run.compile.backend)
    if run.compile.enable and package is not None and find_spec(package) is None:
        message = (
            f"back end {run.compile.backend} needs the package '{package}', which is not installed"
        )
        yield RuleViolation(
            message, (BACKEND,), hint="install it, or use compile.backend: inductor", code="usage"
        )
