"""Runs a recipe's converters on its model, says what they did, and refuses what they could not do."""

import logging
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from titanrun.components.converters.conversion import Conversion, families
from titanrun.config.placed import placed
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import closest, listing
from titanrun.distributed.device import device_words, has_kernels
from titanrun.distributed.mesh import Meshes
from titanrun.recipe.recipe import Recipe

log = logging.getLogger(__name__)


def convert(recipe: Recipe, model: nn.Module, *, meshes: Meshes | None) -> list[Conversion]:
    """Lets each converter rewrite the meta model, in the order of the list; what each of them did."""
    shards = 1 if meshes is None else meshes.degrees.fsdp
    conversions = []
    for index, converter in enumerate(recipe.converters):
        with placed(("converters", index)):
            conversions.append(converter.builder()(converter, model=model, shards=shards))
    return conversions


def tell(recipe: Recipe, model: nn.Module, conversions: Sequence[Conversion]) -> None:
    """Logs what each converter took and left, and the tree of modules if the recipe asks for it."""
    for converter, conversion in zip(recipe.converters, conversions, strict=True):
        log.info("%s: %s", converter.name, conversion.summary)
    if recipe.model.print_after_conversion:
        log.info("%s", model)


def refuse_idle(recipe: Recipe, model: nn.Module, conversions: Sequence[Conversion]) -> None:
    """Raises ProblemsFound for each pattern that is in no module's name, else for each converter that found nothing to do."""
    found = [*unmatched(recipe, model), *idle(recipe, conversions)]
    if found:
        raise ProblemsFound(found)


def unmatched(recipe: Recipe, model: nn.Module) -> Iterator[Problem]:
    """The patterns of converters that are in no module's name."""
    modules = [name for name, _ in model.named_modules() if name]
    for index, converter in enumerate(recipe.converters):
        names = [*modules, *(matrices_of_stacks(model) if converter.of_stacks else ())]
        for field, patterns in converter.patterns.items():
            for position, pattern in enumerate(patterns):
                if not any(converter.fits(pattern, name) for name in names):
                    path = ("converters", index, field, position)
                    yield Problem(
                        "unknown-name",
                        f"no module of the model has '{pattern}' in its name",
                        path,
                        help=meant(pattern, names),
                    )


def matrices_of_stacks(model: nn.Module) -> Iterator[str]:
    """The matrices of stacked experts, by name."""
    return (
        f"{name}.{matrix}"
        for name, module in model.named_modules()
        for matrix in getattr(module, "matrices", ())
    )


def meant(pattern: str, names: Sequence[str]) -> str:
    """What to write instead of a pattern."""
    words = {word for name in names for word in name.split(".") if not word.isdigit()}
    near = closest(pattern, words) or closest(pattern, families(names))
    return f"did you mean '{near}'?" if near else f"modules are called {listing(sorted(words))}"


def idle(recipe: Recipe, conversions: Sequence[Conversion]) -> Iterator[Problem]:
    """The converters that rewrote nothing, with the reasons."""
    for index, (converter, conversion) in enumerate(
        zip(recipe.converters, conversions, strict=True)
    ):
        # what is no number format may have done something else than to take modules
        if not conversion.taken and (conversion.left or converter.format is not None):
            message = f"{converter.name} converts none of the model's modules"
            yield Problem(
                "conflict",
                message,
                ("converters", index),
                help=conversion.summary.partition("; ")[2] or "the model has none of its kind",
            )


def refuse_missing_kernels(recipe: Recipe, device: torch.device) -> None:
    """Raises ProblemsFound for each converter whose kernels the device does not have."""
    found = list(missing_kernels(recipe, device))
    if found:
        raise ProblemsFound(found)


def missing_kernels(recipe: Recipe, device: torch.device) -> Iterator[Problem]:
    """A problem for each converter whose kernels the device does not have."""
    for index, converter in enumerate(recipe.converters):
        if converter.needs is not None and not has_kernels(device, converter.needs):
            yield converter.missing(device_words(device), index)
