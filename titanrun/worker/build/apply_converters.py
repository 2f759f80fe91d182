"""Application of a recipe's converters to its model, with checks and a log of the result."""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.components.converters.spec.module_names import suggest_pattern
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.device import format_device, meets_device_requirement
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import cast_frozen_weights
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.parameter_counts import count_trainable_parameters

log = logging.getLogger(__name__)


def convert_model(
    recipe: Recipe, model: nn.Module, *, meshes: ParallelMeshes | None
) -> list[ConversionReport]:
    """Apply all converters to the meta model in list order and return their reports.

    Weights that adapters leave frozen are stored in the compute dtype.
    """
    shards = 1 if meshes is None else meshes.parallel_dims.fsdp_size
    conversions = []
    for index, converter in enumerate(recipe.converters):
        with nest_problems(("converters", index)):
            conversions.append(converter.load_builder()(converter, model=model, shards=shards))
    if find_lora_converter(recipe) is not None:
        training = recipe.training
        precision = get_precision(training.dtype, training.mixed_precision_param)
        cast_frozen_weights(model, precision)
    return conversions


def log_conversions(
    recipe: Recipe, model: nn.Module, conversions: Sequence[ConversionReport]
) -> None:
    """Log the effect of each converter, and the module tree if the recipe enables it.

    Log how many parameters are trained, too.
    """
    for converter, conversion in zip(recipe.converters, conversions, strict=True):
        log.info("%s: %s", converter.name, conversion.summary)
    log.info("%s", count_trainable_parameters(model).format())
    if recipe.model.print_after_conversion:
        log.info("%s", model)


def check_conversions(
    recipe: Recipe, model: nn.Module, conversions: Sequence[ConversionReport]
) -> None:
    """Check that all name patterns match modules and that all converters had an effect.

    Raises:
        ProblemsFound: one problem per unmatched pattern, else one per converter without an effect.
    """
    found = [
        *iter_unmatched_pattern_problems(recipe, model),
        *iter_idle_converter_problems(recipe, conversions),
    ]
    if found:
        raise ProblemsFound(found)


def iter_unmatched_pattern_problems(recipe: Recipe, model: nn.Module) -> Iterator[Problem]:
    """Yield a problem for each converter pattern that matches no module name."""
    modules = [name for name, _ in model.named_modules() if name]
    for index, converter in enumerate(recipe.converters):
        names = [
            *modules,
            *(iter_expert_matrix_names(model) if converter.matches_expert_weights else ()),
        ]
        for field, patterns in converter.name_patterns.items():
            for position, pattern in enumerate(patterns):
                if not any(converter.matches_pattern(pattern, name) for name in names):
                    path = ("converters", index, field, position)
                    yield Problem(
                        "unknown-name",
                        f"no module name of the model contains '{pattern}'",
                        path,
                        hint=suggest_pattern(pattern, names),
                    )


def iter_expert_matrix_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of the matrices of stacked experts."""
    return (
        f"{name}.{matrix}"
        for name, module in model.named_modules()
        for matrix in getattr(module, "matrices", ())
    )


def iter_idle_converter_problems(
    recipe: Recipe, conversions: Sequence[ConversionReport]
) -> Iterator[Problem]:
    """Yield a problem for each converter that converted nothing, with the reasons."""
    for index, (converter, conversion) in enumerate(
        zip(recipe.converters, conversions, strict=True)
    ):
        # converters without a number format may do something other than converting modules
        if not conversion.converted and (conversion.skipped or converter.number_format is not None):
            message = f"{converter.name} cannot convert any module of the model"
            yield Problem(
                "conflict",
                message,
                ("converters", index),
                hint=conversion.summary.partition("; ")[2]
                or "the model has no modules of this kind",
            )


def check_device_kernels(recipe: Recipe, device: torch.device) -> None:
    """Check that the device has the kernels that all converters require.

    Raises:
        ProblemsFound: one problem per converter without kernels.
    """
    found = list(iter_missing_kernel_problems(recipe, device))
    if found:
        raise ProblemsFound(found)


def iter_missing_kernel_problems(recipe: Recipe, device: torch.device) -> Iterator[Problem]:
    """Yield a problem for each converter whose kernels the device does not have."""
    for index, converter in enumerate(recipe.converters):
        if converter.device_requirement is not None and not meets_device_requirement(
            device, converter.device_requirement
        ):
            yield converter.build_device_problem(format_device(device), index)
