"""Rules about low-rank adapters and the settings they need."""

from collections.abc import Iterator
from itertools import pairwise

from titanrun.components.converters.config import ALL_LINEAR, AdapterConfig, QloraConfig
from titanrun.components.converters.spec.module_names import (
    find_native_name,
    list_module_names,
    suggest_pattern,
)
from titanrun.models.transformers.config import TransformersConfig
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.recipe.rules.compile import ENABLE, compiles_model
from titanrun.recipe.rules.converters import iter_converters
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rule

OTHER_WORDS = ("all", "all_linear")
"""Words of other tools for all linear modules."""


@rule("adapters-come-last")
def adapters_come_last(run: Recipe) -> Iterator[RuleViolation]:
    """Require lora and qlora to be the last converters.

    Adapters wrap modules after the other converters have changed them, and a converter after lora
    or qlora finds no plain modules. List lora or qlora last.
    """
    adapted = None
    for path, converter in iter_converters(run):
        if isinstance(converter, AdapterConfig):
            adapted = path
        elif adapted is not None and not converter.is_for_experts:
            yield RuleViolation(
                f"{converter.name} must come before adapters in converters: adapters "
                "replace the linear modules it converts",
                (path, adapted),
                hint="list lora or qlora last",
            )


@rule("adapters-are-of-one-kind")
def adapters_share_one_kind(run: Recipe) -> Iterator[RuleViolation]:
    """Require either lora or qlora.

    Both freeze the model and add one adapter to a module. Keep one of them, with the target_modules
    of both.
    """
    adapters = [
        (path, converter)
        for path, converter in iter_converters(run)
        if isinstance(converter, AdapterConfig)
    ]
    for (path, first), (other, second) in pairwise(adapters):
        if first.name != second.name:
            message = (
                f"{second.name} cannot be combined with {first.name}: both add adapters to modules"
            )
            yield RuleViolation(message, (other, path), hint="keep one of them")


@rule("adapter-dropout-is-whole")
def adapter_dropout_is_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Require adapters of experts without dropout if tensor parallelism is used.

    Ranks that hold parts of an expert see different tokens, so that they would draw different
    dropout masks. Set dropout to 0, remove experts from target_modules, or set
    tensor_parallel_degree to 1.
    """
    for path, converter in iter_converters(run):
        if (
            not isinstance(converter, AdapterConfig)
            or not converter.dropout
            or not has_expert_adapters(run, converter)
        ):
            continue
        if run.parallelism.tensor_parallel_degree > 1:
            message = (
                "dropout in adapters of stacked experts with tensor parallelism is not "
                "built in this version"
            )
            places = (
                (*path, "dropout"),
                get_parallelism_path("tensor_parallel_degree"),
                (*path, "target_modules"),
            )
            hint = (
                "set dropout: 0, remove experts from target_modules, or set "
                "tensor_parallel_degree: 1"
            )
            yield RuleViolation(message, places, hint=hint, code="not-built")


@rule("adapter-magnitudes-are-of-linear-modules")
def adapter_magnitudes_are_of_linear_modules(run: Recipe) -> Iterator[RuleViolation]:
    """Require adapters of experts without magnitudes.

    The norms of rows are not trained for the stacked matrices of experts, nor does peft support it.
    Remove experts from target_modules, or set magnitude to false.
    """
    for path, converter in iter_converters(run):
        if not isinstance(converter, AdapterConfig) or not converter.magnitude:
            continue
        if has_expert_adapters(run, converter):
            yield RuleViolation(
                "adapters of stacked experts with magnitude are not built in this version",
                ((*path, "magnitude"), (*path, "target_modules")),
                hint="remove experts from target_modules, or set magnitude: false",
                code="not-built",
            )


@rule("adapter-targets-exist")
def adapter_targets_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require that every entry of target_modules matches a module of the model.

    Families of titanrun have names of their own, where transformers has q_proj. Models of
    transformers and replaced modules are examined when the model is built. Use the names that
    `titanrun show RECIPE --model` lists.
    """
    written = [
        (path, converter)
        for path, converter in iter_converters(run)
        if isinstance(converter, AdapterConfig)
        and converter.target_modules not in (None, (), (ALL_LINEAR,))
    ]
    # listing the names of a large model takes longer than all other rules together
    if not written or run.replace or isinstance(run.model, TransformersConfig):
        return
    shapes = run.model.parameter_shapes()
    # a tied head has no parameters of its own
    names = [*list_module_names(shapes), "output"]
    matrices = [name.removesuffix(".weight") for name in shapes if len(shapes[name]) > 1]
    targets = sorted({name.rpartition(".")[2] for name in matrices} - {"tok_embeddings"})
    for path, converter in written:
        for index, pattern in enumerate(converter.target_modules or ()):
            if pattern == ALL_LINEAR:
                continue
            if not any(converter.matches_pattern(pattern, name) for name in names):
                yield RuleViolation(
                    f"no module of the model is called '{pattern}'",
                    ((*path, "target_modules", index), ("model", "name")),
                    hint=f"write {ALL_LINEAR}, for all linear modules but the output head"
                    if pattern in OTHER_WORDS
                    else suggest_pattern(pattern, targets),
                    code="unknown-name",
                    replacement=find_native_name(pattern, targets),
                )


def has_expert_adapters(run: Recipe, converter: AdapterConfig) -> bool:
    """Return whether target_modules adds adapters to stacked experts."""
    stacked = [name for name in run.model.parameter_shapes() if ".experts." in name]
    return any(
        converter.is_named(name) or converter.is_named(name.rpartition(".")[0]) for name in stacked
    )


@rule("adapter-dropout-is-recomputed")
def adapter_dropout_is_recomputed(run: Recipe) -> Iterator[RuleViolation]:
    """Require preserve_rng_state for dropout in recomputed adapters.

    A recomputed layer must drop the same inputs, or its gradients belong to another forward pass.
    Set activation_checkpoint.preserve_rng_state to true, or dropout to 0.
    """
    for path, converter in iter_converters(run):
        if (
            isinstance(converter, AdapterConfig)
            and converter.dropout
            and not getattr(run.activation_checkpoint, "preserve_rng_state", True)
        ):
            message = "recomputed layers would draw other dropout masks in their adapters"
            places = ((*path, "dropout"), ("activation_checkpoint", "preserve_rng_state"))
            yield RuleViolation(
                message,
                places,
                hint="set activation_checkpoint.preserve_rng_state: true, or dropout: 0",
            )


@rule("packed-weights-are-not-saved")
def quantized_weights_are_not_saved(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoint.adapters_only with qlora.

    qlora keeps frozen matrices in codes of 4 or 8 bits, which checkpoints do not store: it saves
    adapters alone, and a resumed run reloads the frozen weights from the place that the run started
    from. Set checkpoint.adapters_only to true, or leave it auto.
    """
    section = run.checkpoint
    for path, converter in iter_converters(run):
        if isinstance(converter, QloraConfig) and section.enable and not section.adapters_only:
            message, only = (
                "checkpoints would hold frozen weights, which qlora quantizes",
                ("checkpoint", "adapters_only"),
            )
            yield RuleViolation(
                message,
                (path, only, ("checkpoint", "enable")),
                hint="set checkpoint.adapters_only: true",
            )
        if isinstance(converter, QloraConfig) and section.create_seed_checkpoint:
            message, seed = (
                "a seed checkpoint holds all weights, but qlora quantizes some",
                ("checkpoint", "create_seed_checkpoint"),
            )
            yield RuleViolation(message, (path, seed), hint="create it without qlora")


@rule("packed-weights-stay-whole")
def quantized_weights_stay_whole(run: Recipe) -> Iterator[RuleViolation]:
    """Reject qlora with tensor parallelism or compilation.

    The quantized matrices of qlora are neither split over tensor-parallel ranks nor compiled in
    this version: every rank holds all of those of its layers. Use lora, or switch the other off.
    """
    for path, converter in iter_converters(run):
        if not isinstance(converter, QloraConfig):
            continue
        if run.parallelism.tensor_parallel_degree > 1:
            message = "qlora with tensor parallelism is not built in this version"
            hint = "use lora, or set tensor_parallel_degree: 1"
            yield RuleViolation(
                message,
                (path, get_parallelism_path("tensor_parallel_degree")),
                hint=hint,
                code="not-built",
            )
        if compiles_model(run):
            message = "qlora in a compiled model is not built in this version"
            yield RuleViolation(
                message,
                (path, ENABLE),
                hint="use lora, or set compile.enable: false",
                code="not-built",
            )


@rule("lora-plus-needs-adapters")
def lora_plus_needs_adapters(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about lora_plus_ratio without adapters.

    It is the learning rate of the matrices B of adapters, which only the converters lora and qlora
    add. Add one of them, or remove it.
    """
    ratio = getattr(run.optimizer, "lora_plus_ratio", 1.0)
    if ratio != 1 and find_lora_converter(run) is None:
        yield RuleViolation(
            "optimizer.lora_plus_ratio has no effect: the recipe has no adapters",
            (("optimizer", "lora_plus_ratio"), ("converters",)),
            hint="add the converter lora, or remove lora_plus_ratio",
            code="no-effect",
            severity="warning",
        )
