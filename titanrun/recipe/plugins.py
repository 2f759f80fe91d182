"""Plug-ins: installed packages that a recipe lists. What they define is part of the recipe language while they are listed."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from titanrun.config import registry
from titanrun.config.added import AddedFields, extended, misfits, steps_to
from titanrun.config.base import ComponentConfig
from titanrun.config.problems import Problem
from titanrun.config.suggest import closest, listing
from titanrun.recipe import menu
from titanrun.recipe.kinds import TrainerKind, kinds
from titanrun.recipe.recipe import Recipe

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

API_VERSION = 1
"""Of what plug-ins may use, as docs/extending.md lists it; a plug-in says in `PLUGIN_API` which one it was written for."""
DECLARES = "PLUGIN_API"
# by name: it brings e-mail and sockets along, and most recipes list no plug-in
METADATA = "importlib.metadata"
PLUGIN_GROUP = "titanrun.plugins"


@dataclass(slots=True)
class Use:
    """The plug-ins in use, the recipe class with what they add, the top-level module of each that was ever imported, and what is wrong."""

    names: tuple[str, ...] = ()
    recipe: type[Recipe] = Recipe
    imported: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


# one recipe is read at a time; a process may read several with other plug-ins one after the other
_use = Use()


def recipe_class() -> type[Recipe]:
    """What a recipe may hold with the plug-ins in use."""
    return _use.recipe


def plugins_installed() -> "dict[str, EntryPoint]":
    """Installed plug-ins by name."""
    return {point.name: point for point in import_module(METADATA).entry_points(group=PLUGIN_GROUP)}


def use(names: Sequence[str]) -> list[Problem]:
    """Put exactly these plug-ins into use, importing those that were not; what is wrong with them."""
    wanted = tuple(dict.fromkeys(names))
    if wanted == _use.names:
        return list(_use.problems)
    menu.open_menu()
    # their rules must not take the names of ours
    menu.load_rules()
    installed = plugins_installed() if wanted else {}
    problems = [
        problem
        for index, name in enumerate(names)
        if (problem := import_plugin(name, index, installed)) is not None
    ]
    listed = {_use.imported[name] for name in wanted if name in _use.imported}
    registry.hide(set(_use.imported.values()) - listed)
    fitting, clashes = fitting_additions(names, listed)
    problems += [*clashes, *taken_names(names)]
    types = {"kind": Literal[tuple(kinds())]} if set(kinds()) != set(kinds_of(Recipe)) else {}
    _use.recipe = (
        extended(Recipe, [(steps_to(added), added) for added in fitting], types)
        if fitting or types
        else Recipe
    )
    _use.names, _use.problems = wanted, tuple(problems)
    return problems


def kinds_of(model: type[Recipe]) -> tuple[str, ...]:
    """The kinds that a recipe class takes."""
    return tuple(model.model_fields["kind"].annotation.__args__)  # type: ignore[union-attr]


def import_plugin(name: str, index: int, installed: "dict[str, EntryPoint]") -> Problem | None:
    """Import a plug-in, which registers its parts by defining them; what is wrong with it."""
    if name not in installed:
        return unknown_plugin(name, index, sorted(installed))
    point = installed[name]
    try:
        point.load()
        written_for = getattr(import_module(point.module), DECLARES, None)
    except Exception as error:  # foreign code, which may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"plug-in '{name}' cannot be imported: {type(error).__name__}: {error}"
        return Problem(
            "usage",
            message,
            ("plugins", index),
            help=f"raised in {Path(place.filename).name}, line {place.lineno}",
        )
    _use.imported[name] = point.module.partition(".")[0]
    return (
        None
        if written_for == API_VERSION
        else other_version(name, index, point.module, written_for)
    )


def other_version(name: str, index: int, module: str, written_for: object) -> Problem:
    """The problem with a plug-in that was written for another titanrun."""
    path = ("plugins", index)
    if written_for is None:
        message = (
            f"plug-in '{name}' does not say which version of the plug-in API it was written for"
        )
        return Problem(
            "version",
            message,
            path,
            help=f"write {DECLARES} = {API_VERSION} into its module {module}",
        )
    is_newer = isinstance(written_for, int) and written_for > API_VERSION
    message = f"plug-in '{name}' was written for version {written_for} of the plug-in API, and this titanrun has version {API_VERSION}"
    help = (
        "update titanrun"
        if is_newer
        else "install a version of the plug-in that was made for this titanrun"
    )
    return Problem("version", message, path, help=help)


def fitting_additions(
    names: Sequence[str], listed: set[str]
) -> tuple[list[type[AddedFields]], list[Problem]]:
    """The fields that the plug-ins add, and a problem for each that clashes with what is there."""
    fitting: list[type[AddedFields]] = []
    problems: list[Problem] = []
    for index, name in enumerate(names):
        package = _use.imported.get(name)
        if name in names[:index] or package not in listed:
            continue
        for added in AddedFields.__subclasses__():
            if registry.package_of(added) != package or added in fitting:
                continue
            so_far = extended(Recipe, [(steps_to(other), other) for other in fitting])
            found = [
                Problem("conflict", f"plug-in '{name}' {why}", ("plugins", index), help=CLASH_HELP)
                for why in misfits(so_far, added)
            ]
            problems += found
            fitting += [] if found else [added]
    return fitting, problems


CLASH_HELP = "leave the plug-in out, or change it"


def taken_names(names: Sequence[str]) -> Iterator[Problem]:
    """A problem for each component or kind of a plug-in whose name another one has."""
    for index, name in enumerate(names):
        package = _use.imported.get(name)
        if package is None or name in names[:index]:
            continue
        taken = [
            f"{slot.slot} '{choice}'"
            for slot in slots_below(ComponentConfig)
            for choice, owners in registry.claims(slot).items()
            if package in owners and len(owners) > 1
        ]
        all_kinds = [
            kind.name for kind in TrainerKind.__subclasses__() if not registry.is_hidden(kind)
        ]
        own_kinds = {
            kind.name
            for kind in TrainerKind.__subclasses__()
            if registry.package_of(kind) == package
        }
        taken += [f"kind '{kind}'" for kind in sorted(own_kinds) if all_kinds.count(kind) > 1]
        for what in taken:
            yield Problem(
                "conflict",
                f"plug-in '{name}' brings {what}, which is there already",
                ("plugins", index),
                help=CLASH_HELP,
            )


def slots_below(config: type[ComponentConfig]) -> Iterator[type[ComponentConfig]]:
    """The slots that are imported."""
    for candidate in config.__subclasses__():
        if candidate.__dict__.get("is_slot"):
            yield candidate
        yield from slots_below(candidate)


def unknown_plugin(name: str, index: int, installed: list[str]) -> Problem:
    """The problem with a plug-in that is not installed."""
    suggestion = closest(name, installed)
    known = f"installed: {listing(installed)}" if installed else "install the package that has it"
    help = f"did you mean '{suggestion}'?" if suggestion else known
    return Problem(
        "unknown-name",
        f"unknown plug-in '{name}'",
        ("plugins", index),
        help=help,
        suggestion=suggestion,
    )
