"""Plug-ins: installed packages that a recipe lists.

What they define is part of the recipe language while they are listed.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from titanrun.config import registry
from titanrun.config.base import ComponentConfig
from titanrun.config.extension_fields import (
    ExtensionFields,
    extend_config_class,
    find_extension_problems,
    get_section_path,
)
from titanrun.config.problems import Problem
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe import builtins
from titanrun.recipe.moved_modules import find_new_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.trainer_kinds import TrainerKind, get_trainer_kinds

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

API_VERSION = 1
"""Version of the plug-in API, which docs/extending.md lists.

A plug-in states in `PLUGIN_API` which version it was written for."""
API_VERSION_ATTRIBUTE = "PLUGIN_API"
# imported by name: it imports e-mail and sockets, and most recipes list no plug-in
METADATA_MODULE = "importlib.metadata"
PLUGIN_GROUP = "titanrun.plugins"


@dataclass(slots=True)
class PluginState:
    """The active plug-ins and the recipe class extended by their fields.

    `imported` maps each plug-in that was ever imported to its top-level module, and `problems` are
    those of the active plug-ins. `is_allowed` tells whether a recipe may import a plug-in by its
    name: whoever reads recipes of others asks first.
    """

    names: tuple[str, ...] = ()
    recipe: type[Recipe] = Recipe
    imported: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    is_allowed: Callable[[str], bool] | None = None


# one recipe is read at a time; a process may read several with different plug-ins in turn
_plugin_state = PluginState()


def get_recipe_class() -> type[Recipe]:
    """Return the recipe class extended by the active plug-ins."""
    return _plugin_state.recipe


def restrict_plugins(is_allowed: Callable[[str], bool] | None) -> None:
    """Import only plug-ins whose name `is_allowed` accepts from here on; None: all that are listed.

    The next recipe activates its plug-ins anew.
    """
    activate_plugins(())
    _plugin_state.is_allowed = is_allowed


def get_installed_plugins() -> "dict[str, EntryPoint]":
    """Return the installed plug-ins by name."""
    return {
        point.name: point
        for point in import_module(METADATA_MODULE).entry_points(group=PLUGIN_GROUP)
    }


def activate_plugins(names: Sequence[str]) -> list[Problem]:
    """Activate exactly these plug-ins, importing new ones, and return their problems."""
    wanted = tuple(dict.fromkeys(names))
    if wanted == _plugin_state.names:
        return list(_plugin_state.problems)
    builtins.register_builtins()
    # first: rules of plug-ins must not take the names of built-in rules
    builtins.load_rules()
    installed = get_installed_plugins() if wanted else {}
    problems = [
        problem
        for index, name in enumerate(names)
        if (problem := import_plugin(name, index, installed)) is not None
    ]
    listed = {_plugin_state.imported[name] for name in wanted if name in _plugin_state.imported}
    registry.hide_packages(set(_plugin_state.imported.values()) - listed)
    fitting, clashes = select_added_fields(names, listed)
    problems += [*clashes, *find_name_clash_problems(names)]
    types = (
        {"kind": Literal[tuple(get_trainer_kinds())]}
        if set(get_trainer_kinds()) != set(get_recipe_kinds(Recipe))
        else {}
    )
    _plugin_state.recipe = (
        extend_config_class(Recipe, [(get_section_path(added), added) for added in fitting], types)
        if fitting or types
        else Recipe
    )
    _plugin_state.names, _plugin_state.problems = wanted, tuple(problems)
    return problems


def get_recipe_kinds(model: type[Recipe]) -> tuple[str, ...]:
    """Return the kinds that a recipe class accepts."""
    return tuple(model.model_fields["kind"].annotation.__args__)  # type: ignore[union-attr]


def import_plugin(name: str, index: int, installed: "dict[str, EntryPoint]") -> Problem | None:
    """Import a plug-in, which registers its components, and return its problem if any."""
    if name not in installed:
        return build_unknown_plugin_problem(name, index, sorted(installed))
    if _plugin_state.is_allowed is not None and not _plugin_state.is_allowed(name):
        return build_withheld_plugin_problem(name, index)
    point = installed[name]
    try:
        point.load()
        written_for = getattr(import_module(point.module), API_VERSION_ATTRIBUTE, None)
    except Exception as error:  # third-party code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"plug-in '{name}' cannot be imported: {type(error).__name__}: {error}"
        moved = find_new_module(error)
        hint = f"raised in {Path(place.filename).name}, line {place.lineno}"
        if moved is not None:
            hint = f"the module is now {moved}"
        return Problem(
            "usage",
            message,
            ("plugins", index),
            hint=hint,
        )
    _plugin_state.imported[name] = point.module.partition(".")[0]
    return (
        None
        if written_for == API_VERSION
        else build_plugin_version_problem(name, index, point.module, written_for)
    )


def build_withheld_plugin_problem(name: str, index: int) -> Problem:
    """Build the problem of a plug-in that is not imported without consent."""
    message = f"plug-in '{name}' is not imported: it would run its code here"
    return Problem("usage", message, ("plugins", index), hint="allow it if you trust this recipe")


def build_plugin_version_problem(
    name: str, index: int, module: str, written_for: object
) -> Problem:
    """Build the problem of a plug-in written for another version of the plug-in API."""
    path = ("plugins", index)
    if written_for is None:
        message = (
            f"plug-in '{name}' does not state which version of the plug-in API it was written for"
        )
        return Problem(
            "version",
            message,
            path,
            hint=f"write {API_VERSION_ATTRIBUTE} = {API_VERSION} into its module {module}",
        )
    is_newer = isinstance(written_for, int) and written_for > API_VERSION
    message = (
        f"plug-in '{name}' was written for version {written_for} of the plug-in API, "
        f"but this titanrun has version {API_VERSION}"
    )
    hint = (
        "update titanrun"
        if is_newer
        else "install a version of the plug-in that was written for this titanrun"
    )
    return Problem("version", message, path, hint=hint)


def select_added_fields(
    names: Sequence[str], listed: set[str]
) -> tuple[list[type[ExtensionFields]], list[Problem]]:
    """Return the fields that plug-ins add, and a problem for each clash with existing ones."""
    fitting: list[type[ExtensionFields]] = []
    problems: list[Problem] = []
    for index, name in enumerate(names):
        package = _plugin_state.imported.get(name)
        if name in names[:index] or package not in listed:
            continue
        for added in ExtensionFields.__subclasses__():
            if registry.get_top_level_package(added) != package or added in fitting:
                continue
            so_far = extend_config_class(
                Recipe, [(get_section_path(other), other) for other in fitting]
            )
            found = [
                Problem("conflict", f"plug-in '{name}' {why}", ("plugins", index), hint=CLASH_HELP)
                for why in find_extension_problems(so_far, added)
            ]
            problems += found
            fitting += [] if found else [added]
    return fitting, problems


CLASH_HELP = "remove the plug-in, or change it"


def find_name_clash_problems(names: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each plug-in component or kind whose name is already taken."""
    for index, name in enumerate(names):
        package = _plugin_state.imported.get(name)
        if package is None or name in names[:index]:
            continue
        taken = [
            f"{slot.slot} '{choice}'"
            for slot in iter_slots(ComponentConfig)
            for choice, owners in registry.get_packages_by_choice(slot).items()
            if package in owners and len(owners) > 1
        ]
        all_kinds = [
            kind.name for kind in TrainerKind.__subclasses__() if not registry.is_hidden_class(kind)
        ]
        own_kinds = {
            kind.name
            for kind in TrainerKind.__subclasses__()
            if registry.get_top_level_package(kind) == package
        }
        taken += [f"kind '{kind}'" for kind in sorted(own_kinds) if all_kinds.count(kind) > 1]
        for what in taken:
            yield Problem(
                "conflict",
                f"plug-in '{name}' defines {what}, which already exists",
                ("plugins", index),
                hint=CLASH_HELP,
            )


def iter_slots(config: type[ComponentConfig]) -> Iterator[type[ComponentConfig]]:
    """Yield the imported slots below a config class."""
    for candidate in config.__subclasses__():
        if candidate.__dict__.get("is_slot"):
            yield candidate
        yield from iter_slots(candidate)


def build_unknown_plugin_problem(name: str, index: int, installed: list[str]) -> Problem:
    """Build the problem of a plug-in that is not installed."""
    suggestion = find_closest(name, installed)
    known = (
        f"installed: {format_word_list(installed)}"
        if installed
        else "install the package that provides it"
    )
    hint = f"did you mean '{suggestion}'?" if suggestion else known
    return Problem(
        "unknown-name",
        f"unknown plug-in '{name}'",
        ("plugins", index),
        hint=hint,
        suggestion=suggestion,
    )
