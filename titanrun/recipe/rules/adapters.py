"""Rules about low-rank adapters: what the rest of a recipe must be for them."""

from collections.abc import Iterator
from itertools import pairwise

from titanrun.components.converters.config import AdapterConfig, QloraConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.compiled import ENABLE, compiles_model
from titanrun.recipe.rules.converters import listed
from titanrun.recipe.rules.ranks import at


@rule("adapters-come-last")
def adapters_come_last(run: Recipe) -> Iterator[Finding]:
    """Adapters stand beside modules as other converters left them, and those find no plain modules behind lora or qlora. List lora or qlora
    last."""
    adapted = None
    for path, converter in listed(run):
        if isinstance(converter, AdapterConfig):
            adapted = path
        elif adapted is not None and not converter.of_experts:
            yield Finding(
                f"{converter.name} stands behind adapters, and finds no plain modules there",
                (path, adapted),
                help="list lora or qlora last",
            )


@rule("adapters-are-of-one-kind")
def adapters_are_of_one_kind(run: Recipe) -> Iterator[Finding]:
    """lora and qlora both freeze the model and give modules an adapter, and a module has one. Keep one of them, with the target_modules of
    both."""
    adapters = [
        (path, converter) for path, converter in listed(run) if isinstance(converter, AdapterConfig)
    ]
    for (path, first), (other, second) in pairwise(adapters):
        if first.name != second.name:
            message = (
                f"{second.name} stands beside {first.name}, and both would give modules an adapter"
            )
            yield Finding(message, (other, path), help="keep one of them")


@rule("adapter-dropout-is-whole")
def adapter_dropout_is_whole(run: Recipe) -> Iterator[Finding]:
    """Dropout in adapters of stacked experts does not go together with tensor parallelism: ranks that hold parts of an expert see different
    tokens, and would no longer draw alike. Set dropout to 0, leave experts out of target_modules, or set tensor_parallel_degree to 1."""
    for path, converter in listed(run):
        if (
            not isinstance(converter, AdapterConfig)
            or not converter.dropout
            or not adapts_stacks(run, converter)
        ):
            continue
        if run.parallelism.tensor_parallel_degree > 1:
            message = "dropout in adapters of stacked experts together with tensor parallelism is not built in this version"
            places = ((*path, "dropout"), at("tensor_parallel_degree"), (*path, "target_modules"))
            help = "set dropout: 0, leave experts out of target_modules, or set tensor_parallel_degree: 1"
            yield Finding(message, places, help=help, code="not-built")


def adapts_stacks(run: Recipe, converter: AdapterConfig) -> bool:
    """Whether stacked experts get adapters: where target_modules names them."""
    if converter.target_modules is None:
        return False
    stacked = [name for name in run.model.parameter_shapes() if ".experts." in name]
    return any(
        converter.targets(name) or converter.targets(name.rpartition(".")[0]) for name in stacked
    )


@rule("adapter-dropout-is-recomputed")
def adapter_dropout_is_recomputed(run: Recipe) -> Iterator[Finding]:
    """A layer that is computed again must leave out the same inputs, or its gradients are those of another one. Set
    activation_checkpoint.preserve_rng_state to true, or dropout to 0."""
    for path, converter in listed(run):
        if (
            isinstance(converter, AdapterConfig)
            and converter.dropout
            and not getattr(run.activation_checkpoint, "preserve_rng_state", True)
        ):
            message = (
                "layers that are computed again would leave out other inputs of their adapters"
            )
            places = ((*path, "dropout"), ("activation_checkpoint", "preserve_rng_state"))
            yield Finding(
                message,
                places,
                help="set activation_checkpoint.preserve_rng_state: true, or dropout: 0",
            )


@rule("packed-weights-are-not-saved")
def packed_weights_are_not_saved(run: Recipe) -> Iterator[Finding]:
    """qlora keeps frozen matrices in codes of 4 or 8 bits, which no checkpoint holds: it saves adapters alone, and a run that goes on takes
    the frozen weights again from where it started. Set checkpoint.adapters_only to true."""
    section = run.checkpoint
    for path, converter in listed(run):
        if isinstance(converter, QloraConfig) and section.enable and not section.adapters_only:
            message, only = (
                "checkpoints would hold frozen weights, which qlora has packed",
                ("checkpoint", "adapters_only"),
            )
            yield Finding(
                message,
                (path, only, ("checkpoint", "enable")),
                help="set checkpoint.adapters_only: true",
            )
        if isinstance(converter, QloraConfig) and section.create_seed_checkpoint:
            message, seed = (
                "a seed checkpoint holds all weights, and qlora has packed some",
                ("checkpoint", "create_seed_checkpoint"),
            )
            yield Finding(message, (path, seed), help="create it without qlora")


@rule("packed-weights-stay-whole")
def packed_weights_stay_whole(run: Recipe) -> Iterator[Finding]:
    """The packed matrices of qlora are neither split over tensor-parallel ranks nor compiled in this version: every rank holds all of those
    of its layers. Use lora, or switch the other off."""
    for path, converter in listed(run):
        if not isinstance(converter, QloraConfig):
            continue
        if run.parallelism.tensor_parallel_degree > 1:
            message = "qlora together with tensor parallelism is not built in this version"
            help = "use lora, or set tensor_parallel_degree: 1"
            yield Finding(
                message, (path, at("tensor_parallel_degree")), help=help, code="not-built"
            )
        if compiles_model(run):
            message = "qlora in a compiled model is not built in this version"
            yield Finding(
                message,
                (path, ENABLE),
                help="use lora, or set compile.enable: false",
                code="not-built",
            )
