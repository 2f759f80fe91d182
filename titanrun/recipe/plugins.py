"""Plug-ins: installed packages, and files beside a recipe, that a recipe lists.

What they define is part of the recipe language while they are listed.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from titanrun.config.trust import NamedCode
from titanrun.recipe import builtins
from titanrun.recipe.moved_modules import find_new_module
from titanrun.recipe.plugin_files import (
    PluginFile,
    build_untrusted_plugin_problem,
    get_plugin_state,
    is_plugin_allowed,
    is_plugin_file,
    publish_places,
    read_plugin_file,
    retire_module,
    run_plugin_file,
)
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
    name: whoever reads recipes of others asks first. `files` are the active
    plug-in files, `loaded` those that have run, by module, `replaced` the names that their former
    classes got, and `ask` asks the user whether one may run.
    """

    names: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    recipe: type[Recipe] = Recipe
    imported: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    is_allowed: Callable[[str], bool] | None = None
    files: tuple[PluginFile, ...] = ()
    loaded: dict[str, PluginFile] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    ask: Callable[[NamedCode], bool] | None = None


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


def ask_before_plugins(ask: Callable[[NamedCode], bool] | None) -> None:
    """Ask the user from here on whether a plug-in file may run that was not allowed before."""
    _plugin_state.ask = ask


def get_plugin_places() -> dict[str, list[Path]]:
    """Return where the active plug-in files lie, to activate them again after another recipe."""
    return {file.entry: [file.path] for file in _plugin_state.files}


def get_plugin_codes() -> list[NamedCode]:
    """Return the active plug-in files as code that consent is for."""
    return [file.code for file in _plugin_state.files]


def get_plugin_packages() -> set[str]:
    """Return the top-level packages and modules of all plug-ins that were imported."""
    return set(_plugin_state.imported.values())


def activate_plugins(
    names: Sequence[str], places: Mapping[str, Sequence[Path]] | None = None
) -> list[Problem]:
    """Activate exactly these plug-ins, importing new ones, and return their problems.

    `places` lists where each plug-in file may lie; without them, the places that are known.
    """
    wanted = tuple(dict.fromkeys(names))
    read = read_plugin_files(names, places or {})
    digests = tuple(get_plugin_state(file) for file in read)
    if (wanted, digests) == (_plugin_state.names, _plugin_state.digests):
        return list(_plugin_state.problems)
    builtins.register_builtins()
    # first: rules of plug-ins must not take the names of built-in rules
    builtins.load_rules()
    problems = [*import_listed(names), *load_plugin_files(names, read)]
    listed = {_plugin_state.imported[name] for name in wanted if name in _plugin_state.imported}
    known = {*_plugin_state.imported.values(), *_plugin_state.loaded, *_plugin_state.replaced}
    registry.hide_packages(known - listed)
    fitting, clashes = select_added_fields(names, listed)
    problems += [*clashes, *find_name_clash_problems(names)]
    _plugin_state.recipe = build_recipe_class(fitting)
    _plugin_state.names, _plugin_state.digests = wanted, digests
    _plugin_state.problems = tuple(problems)
    return problems


def build_recipe_class(added: Sequence[type[ExtensionFields]]) -> type[Recipe]:
    """Return the recipe class with the fields and the kinds of the active plug-ins."""
    types = (
        {"kind": Literal[tuple(get_trainer_kinds())]}
        if set(get_trainer_kinds()) != set(get_recipe_kinds(Recipe))
        else {}
    )
    if not added and not types:
        return Recipe
    return extend_config_class(Recipe, [(get_section_path(each), each) for each in added], types)


def import_listed(names: Sequence[str]) -> list[Problem]:
    """Import the listed packages and return their problems."""
    packages = [(index, name) for index, name in enumerate(names) if not is_plugin_file(name)]
    installed = get_installed_plugins() if packages else {}
    found = (import_plugin(name, index, installed) for index, name in packages)
    return [problem for problem in found if problem is not None]


def read_plugin_files(
    names: Sequence[str], places: Mapping[str, Sequence[Path]]
) -> list[PluginFile | Problem]:
    """Read the listed plug-in files, each once."""
    return [
        read_plugin_file(name, index, places.get(name, ()))
        for index, name in enumerate(names)
        if is_plugin_file(name) and name not in names[:index]
    ]


def load_plugin_files(names: Sequence[str], read: Sequence[PluginFile | Problem]) -> list[Problem]:
    """Run the plug-in files that may run, and return the problems of all."""
    problems: list[Problem] = []
    files: list[PluginFile] = []
    for name in filter(is_plugin_file, names):
        _plugin_state.imported.pop(name, None)
    for file in read:
        if isinstance(file, Problem):
            problems.append(file)
            continue
        index = list(names).index(file.entry)
        problem = find_twin_problem(file, index, files) or load_plugin_file(file, index)
        problems += [] if problem is None else [problem]
        if file.entry in _plugin_state.imported:
            files.append(file)
    _plugin_state.files = tuple(files)
    publish_places(files)
    return problems


def find_twin_problem(file: PluginFile, index: int, others: Sequence[PluginFile]) -> Problem | None:
    """Return the problem of two plug-in files with one name, if there is one."""
    if all(other.module != file.module for other in others):
        return None
    message = f"two plug-in files are called '{file.path.name}'"
    return Problem("conflict", message, ("plugins", index), hint="rename one of them")


def load_plugin_file(file: PluginFile, index: int) -> Problem | None:
    """Run a plug-in file unless it has run already, and return its problem if any."""
    if not is_plugin_allowed(file, _plugin_state.ask):
        return build_untrusted_plugin_problem(file, index)
    loaded = _plugin_state.loaded.get(file.module)
    if loaded is None or loaded.digest != file.digest:
        if loaded is not None:
            withdraw_module(file.module)
        try:
            run_plugin_file(file)
        except (Exception, SystemExit) as error:  # code of the user may raise anything
            withdraw_module(file.module)
            return build_import_problem(file.entry, index, error)
        _plugin_state.loaded[file.module] = file
    _plugin_state.imported[file.entry] = file.module
    written_for = getattr(import_module(file.module), API_VERSION_ATTRIBUTE, None)
    return (
        None
        if written_for == API_VERSION
        else build_plugin_version_problem(file.entry, index, file.path.name, written_for)
    )


def withdraw_module(name: str) -> None:
    """Take what a plug-in file defined out of the recipe language."""
    former = f"{name}_replaced_{len(_plugin_state.replaced)}"
    module = sys.modules.get(name)
    if module is not None:
        retire_module(module, former)
    _plugin_state.replaced.add(former)
    _plugin_state.loaded.pop(name, None)
    builtins.unload_rules(name)


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
        return build_import_problem(name, index, error)
    _plugin_state.imported[name] = point.module.partition(".")[0]
    return (
        None
        if written_for == API_VERSION
        else build_plugin_version_problem(name, index, point.module, written_for)
    )


def build_import_problem(name: str, index: int, error: BaseException) -> Problem:
    """Build the problem of a plug-in that raised an error when it was imported."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    file, line = place.filename, place.lineno
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    message = f"plug-in '{name}' cannot be imported: {type(error).__name__}: {error}"
    moved = find_new_module(error)
    hint = f"raised in {Path(file).name}, line {line}"
    if moved is not None:
        hint = f"the module is now {moved}"
    return Problem("usage", message, ("plugins", index), hint=hint)


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
