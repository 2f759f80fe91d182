"""Spells a model section out: every size is written down, wherever it came from."""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from titanrun.config import registry
from titanrun.config.base import dump
from titanrun.config.problems import DataPath, Problem, ProblemsFound
from titanrun.config.source import read_source
from titanrun.config.suggest import closest, is_other_number, listing
from titanrun.config.tree import path_text, plain
from titanrun.config.types import AUTO
from titanrun.models.shared.config import ModelConfig, Sizes
from titanrun.models.shared.family import family_file
from titanrun.models.shared.huggingface_config import load_config_json

SECTION: DataPath = ("model",)
# fields of every family in which the word auto, where it may stand at all, names no size
NO_SIZES = ("flavor", "hf_assets_path", "documents")


def flavors(family: str) -> dict[str, Sizes]:
    """The named sizes of a family, in the shape of its fields. Raises KeyError for a family that is not registered."""
    chosen = registry.choice(ModelConfig, family)
    assert issubclass(chosen, ModelConfig)
    return {name: flavor_sizes(chosen, name) for name in flavor_names(chosen)}


def flavor_names(family: type[ModelConfig]) -> list[str]:
    """The names of a family's sizes, in the order of its file."""
    return list(flavor_file(family).get("flavors", {}))


def flavor_sizes(family: type[ModelConfig], name: str) -> Sizes:
    """The sizes of one flavor: what the family's sizes have in common, and its own on top."""
    content = flavor_file(family)
    return overlaid(content.get("common", {}), content["flavors"][name])


@cache
def flavor_file(family: type[ModelConfig]) -> dict[str, Any]:
    """What the family's flavors.yaml holds: `common` and `flavors`; nothing for a family without the file."""
    path = family_file(family, "flavors.yaml")
    content = plain(read_source(str(path))) if path.exists() else {}
    assert isinstance(content, dict)
    return content


def spell_out(config: ModelConfig, *, row_length: int | None = None) -> dict[str, Any]:
    """Plain data of the model section with every `auto` decided, for training on rows of `row_length` tokens.

    What the recipe says stands; the rest comes from the flavor, or from config.json where the flavor is `auto`, and what they
    leave open follows from the other sizes. A flavor is looked up only while something is open. Raises ProblemsFound.
    """
    family = type(config)
    sizes = dump(config)
    if any(open_paths(sizes)):
        sizes = filled(sizes, named_sizes(config, row_length))
    problems = family.conflicts(sizes)
    problems += missing(config, [path for path in open_paths(sizes) if path not in family.follows])
    if problems:
        raise ProblemsFound(problems)
    return {**family.derived(sizes), "flavor": None if config.flavor == AUTO else config.flavor}


def named_sizes(config: ModelConfig, row_length: int | None = None) -> Sizes:
    """The sizes that the config's flavor stands for; of a custom model only what all of the family have in common."""
    in_file = config.sizes_from_file()
    if in_file is not None:
        return in_file
    family, flavor = type(config), config.flavor
    common = flavor_file(family).get("common", {})
    if flavor == AUTO:
        return overlaid(
            common, family.sizes_from_huggingface(load_config_json(config.hf_assets_path))
        )
    if flavor is not None and flavor not in flavor_names(family):
        raise ProblemsFound([unknown_flavor(config.name, flavor, flavor_names(family))])
    sizes = deepcopy(common) if flavor is None else flavor_sizes(family, flavor)
    return sizes if row_length is None else family.for_rows(sizes, row_length)


def unknown_flavor(family: str, flavor: str, known: list[str]) -> Problem:
    """The problem with a flavor that the family does not have."""
    suggestion = closest(flavor, [name for name in known if not is_other_number(flavor, name)])
    all_known = f"known flavors: {listing(known, last='and')}"
    help = all_known if suggestion is None else f"did you mean '{suggestion}'?"
    if suggestion is not None and suggestion[0].isdigit():  # a wrong size is easily taken
        help = f"{help} {all_known}"
    return Problem(
        "unknown-name",
        f"{family} has no flavor '{flavor}'",
        (*SECTION, "flavor"),
        help=help,
        suggestion=suggestion,
        got=flavor,
    )


def missing(config: ModelConfig, paths: list[DataPath]) -> list[Problem]:
    """The problem with sizes that neither the recipe nor the flavor gives, if there are any."""
    if not paths:
        return []
    holder = (
        f"a custom {config.name} model" if config.flavor is None else f"flavor '{config.flavor}'"
    )
    known = listing(flavor_names(type(config)), last="and")
    help = f"write {'it' if len(paths) == 1 else 'them'}" + (
        f", or name a flavor: {known}" if known else ""
    )
    needed = listing(map(path_text, paths), last="and")
    return [Problem("missing-key", f"{holder} needs {needed}", (*SECTION, *paths[0]), help=help)]


def overlaid(base: Sizes, top: Sizes) -> Sizes:
    """`base` with the values of `top`, key by key; a component, which has a name, replaces as a whole."""
    result = deepcopy(base)
    for key, value in top.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and "name" not in value:
            result[key] = overlaid(below, value)
        else:
            result[key] = deepcopy(value)
    return result


def filled(written: Sizes, known: Sizes) -> Sizes:
    """`written` with each "auto" replaced by the value of `known` at the same place, where there is one."""
    result = {}
    for key, value in written.items():
        if value == AUTO and key not in NO_SIZES:
            result[key] = deepcopy(known.get(key, AUTO))
        elif isinstance(value, dict) and "name" not in value:
            result[key] = filled(value, known.get(key) or {})
        else:
            result[key] = value
    return result


def open_paths(sizes: Sizes, path: DataPath = ()) -> Iterator[DataPath]:
    """Where a value is still "auto"."""
    for key, value in sizes.items():
        if value == AUTO and key not in NO_SIZES:
            yield (*path, key)
        elif isinstance(value, dict):
            yield from open_paths(value, (*path, key))
