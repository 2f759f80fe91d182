"""Puts what a recipe's `replace` says in place of parts of the model, before converters see it."""

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import MethodType

from torch import nn

from titanrun.components.converters.conversion import families, replace_module
from titanrun.components.modules.config import ReplaceConfig
from titanrun.config.placed import placed
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.recipe.recipe import Recipe
from titanrun.worker.converters import meant

log = logging.getLogger(__name__)

SECTION = "replace"


def replace_parts(recipe: Recipe, model: nn.Module) -> None:
    """Exchanges parts of the meta model. Every entry's modules are found first, in the model as its family builds it.

    Raises ProblemsFound for patterns that match nothing, modules that two entries claim, and replacements that do not fit.
    """
    entries = recipe.replace or ()
    names = [name for name, _ in model.named_modules() if name]
    claims = [[name for name in names if fits(entry.match, name)] for entry in entries]
    problems = [*unmatched(entries, claims, names), *claimed_twice(claims)]
    if problems:
        raise ProblemsFound(problems)
    for index, claimed in enumerate(claims):
        for name in claimed:
            with placed((SECTION, index)):
                replace_part(entries[index], model, name)
        log.info("%s stands for %s", entries[index].replacement.name, ", ".join(families(claimed)))


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern means the module `name`: step by step."""
    wanted, steps = pattern.split("."), name.split(".")
    return len(wanted) == len(steps) and all(map(fnmatchcase, steps, wanted))


def unmatched(
    entries: Sequence[ReplaceConfig], claims: list[list[str]], names: list[str]
) -> Iterator[Problem]:
    """A problem for each pattern that matches nothing."""
    for index, (entry, claimed) in enumerate(zip(entries, claims, strict=True)):
        if not claimed:
            last = entry.match.rpartition(".")[2]
            yield Problem(
                "unknown-name",
                f"no module of the model is called '{entry.match}'",
                (SECTION, index, "match"),
                help=meant(last, names),
            )


def claimed_twice(claims: list[list[str]]) -> Iterator[Problem]:
    """A problem for each entry that claims a module of an earlier one, one within it or one around it."""
    for index, claimed in enumerate(claims):
        for before, others in enumerate(claims[:index]):
            shared = next(
                ((mine, theirs) for mine in claimed for theirs in others if overlap(mine, theirs)),
                None,
            )
            if shared is not None:
                mine, theirs = shared
                what = mine if mine == theirs else f"{mine}, beside {theirs},"
                message = f"{what} is replaced by entry {before + 1} of the list already"
                yield Problem(
                    "conflict", message, (SECTION, index, "match"), help="let one entry have it"
                )
                break


def overlap(one: str, other: str) -> bool:
    """Whether two modules are the same, or one is within the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def replace_part(entry: ReplaceConfig, model: nn.Module, name: str) -> None:
    """Exchanges one module. Raises ProblemsFound where the new one has other parameters."""
    config = entry.replacement
    replaced = model.get_submodule(name)
    before = shapes(replaced)
    new = config.builder()(config, replaced=replaced)
    if shapes(new) != before:
        differing = sorted(before.keys() ^ shapes(new).keys()) or [
            key for key in before if before[key] != shapes(new)[key]
        ]
        message = f"{config.name} has other parameters than {name}, for which it is to stand: {', '.join(differing)}"
        raise fail("conflict", message, path=("with",), help="a replacement keeps names and shapes")
    if not hasattr(new, "init_weights") and hasattr(type(replaced), "init_weights"):
        new.init_weights = MethodType(type(replaced).init_weights, new)
    replace_module(model, name, new)


def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The parameters of a module by name."""
    return {name: tuple(weight.shape) for name, weight in module.named_parameters()}
