"""Replacement of model parts by the recipe's `replace` section, before converters."""

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

from torch import nn

from titanrun.components.converters.conversion_report import replace_module
from titanrun.components.converters.spec.module_names import (
    collapse_layer_numbers,
    suggest_pattern,
)
from titanrun.components.modules.config import ReplaceConfig
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.recipe.recipe import Recipe

log = logging.getLogger(__name__)

SECTION = "replace"


def apply_replacements(recipe: Recipe, model: nn.Module) -> None:
    """Replace parts of the meta model.

    The modules of all entries are matched first, in the model as its family builds it.

    Raises:
        ProblemsFound: a pattern matches nothing, two entries match the same module, or a
            replacement does not fit.
    """
    entries = recipe.replace or ()
    names = [name for name, _ in model.named_modules() if name]
    claims = [[name for name in names if has_matching_path(entry.match, name)] for entry in entries]
    problems = [
        *iter_unmatched_replacement_problems(entries, claims, names),
        *iter_replacement_overlap_problems(claims),
    ]
    if problems:
        raise ProblemsFound(problems)
    for index, claimed in enumerate(claims):
        for name in claimed:
            with nest_problems((SECTION, index)):
                apply_replacement(entries[index], model, name)
        log.info(
            "%s replaces %s",
            entries[index].replacement.name,
            ", ".join(collapse_layer_numbers(claimed)),
        )


def has_matching_path(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a module name, component by component."""
    wanted, steps = pattern.split("."), name.split(".")
    return len(wanted) == len(steps) and all(map(fnmatchcase, steps, wanted))


def iter_unmatched_replacement_problems(
    entries: Sequence[ReplaceConfig], claims: list[list[str]], names: list[str]
) -> Iterator[Problem]:
    """Yield a problem for each pattern that matches nothing."""
    for index, (entry, claimed) in enumerate(zip(entries, claims, strict=True)):
        if not claimed:
            last = entry.match.rpartition(".")[2]
            yield Problem(
                "unknown-name",
                f"no module of the model is named '{entry.match}'",
                (SECTION, index, "match"),
                hint=suggest_pattern(last, names),
            )


def iter_replacement_overlap_problems(claims: list[list[str]]) -> Iterator[Problem]:
    """Yield a problem for each entry that overlaps an earlier one.

    Entries overlap if they match the same module, or a module and one inside it.
    """
    for index, claimed in enumerate(claims):
        for before, others in enumerate(claims[:index]):
            shared = next(
                (
                    (mine, theirs)
                    for mine in claimed
                    for theirs in others
                    if is_same_or_nested(mine, theirs)
                ),
                None,
            )
            if shared is not None:
                mine, theirs = shared
                what = mine if mine == theirs else f"{mine} (overlaps {theirs})"
                message = f"{what} is already replaced by entry {before + 1} of the list"
                yield Problem(
                    "conflict",
                    message,
                    (SECTION, index, "match"),
                    hint="let only one entry match it",
                )
                break


def is_same_or_nested(one: str, other: str) -> bool:
    """Return whether two modules are the same, or one contains the other."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def apply_replacement(entry: ReplaceConfig, model: nn.Module, name: str) -> None:
    """Replace one module.

    Raises:
        ProblemsFound: the new module has other parameters.
    """
    config = entry.replacement
    replaced = model.get_submodule(name)
    before = get_parameter_shapes(replaced)
    new = config.load_builder()(config, replaced=replaced)
    if get_parameter_shapes(new) != before:
        differing = sorted(before.keys() ^ get_parameter_shapes(new).keys()) or [
            key for key in before if before[key] != get_parameter_shapes(new)[key]
        ]
        message = (
            f"{config.name} has other parameters than {name}, which it replaces: "
            f"{', '.join(differing)}"
        )
        raise problem_error(
            "conflict", message, path=("with",), hint="keep the names and shapes of parameters"
        )
    kind: Any = type(replaced)
    if not hasattr(new, "init_weights") and hasattr(kind, "init_weights"):
        new.init_weights = MethodType(kind.init_weights, new)
    replace_module(model, name, new)


def get_parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the parameter shapes of a module by name."""
    return {name: tuple(weight.shape) for name, weight in module.named_parameters()}
