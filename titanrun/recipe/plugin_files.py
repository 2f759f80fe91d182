"""Plug-ins in one file beside a recipe: found, allowed by their digest, and run as they were read.

A run directory keeps a copy in `plugins/`, so that nothing depends on the original. What runs are
the bytes whose digest was compared, never a compiled file beside them.
"""

import hashlib
import json
import linecache
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from titanrun.config.control_characters import escape_line
from titanrun.config.problems import Problem, SourceText
from titanrun.config.trust import TRUST_FLAG, NamedCode, is_trusted

PLUGIN_SUFFIX = ".py"
PLUGIN_FOLDER = "plugins"
# files of this process's recipes, for processes that it starts and that get the recipe as text
PLACES_VARIABLE = "TITANRUN_PLUGIN_FILES"
MAX_PLUGIN_BYTES = 1024**2
# in a run directory these lie beside plugins/, and in a checkpoint some folders below it
SAVED_RECIPES = ("resolved.yaml", "stages.yaml")
MAX_FOLDERS_UP = 4


@dataclass(frozen=True, slots=True)
class PluginFile:
    """Plug-in in a file.

    Args:
        entry: what the recipe writes.
        path: the file that was read.
        content: its bytes.
        code: its description for consent; the digest covers name and content, not the folder.
    """

    entry: str
    path: Path
    content: bytes
    code: NamedCode

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.path.stem

    @property
    def digest(self) -> str:
        """Identity of its name and content."""
        return self.code.digest


class _PluginLoader:
    """Loader of a module from bytes in memory."""

    def __init__(self, file: PluginFile) -> None:
        self.file = file

    def create_module(self, spec: ModuleSpec) -> None:
        """Use an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the bytes that were allowed."""
        exec(compile(self.file.content, str(self.file.path), "exec"), module.__dict__)


def is_plugin_file(entry: str) -> bool:
    """Return whether an entry of `plugins` is a file, not an installed package."""
    return entry.endswith(PLUGIN_SUFFIX)


def list_plugin_places(entry: str, source: SourceText) -> list[Path]:
    """Return where the file of an entry may lie, the best place first.

    It is relative to the recipe that names it, on the command line to the working directory.
    """
    if source.kind == "override" or not source.is_file:
        return [Path(entry)] if source.kind == "override" else []
    return list_recipe_places(entry, Path(source.name.partition("#")[0]))


def list_recipe_places(entry: str, recipe: Path) -> list[Path]:
    """Return where the file of an entry may lie for the recipe in a file."""
    copies: list[Path] = []
    if recipe.name in SAVED_RECIPES:
        folder = recipe.absolute().parent
        copies = [
            place / PLUGIN_FOLDER / Path(entry).name
            for place in (folder, *folder.parents[:MAX_FOLDERS_UP])
        ]
    return [*copies, recipe.parent / entry]


def read_plugin_file(
    entry: str, index: int, places: Sequence[Path], environment: Mapping[str, str] | None = None
) -> PluginFile | Problem:
    """Read the file of an entry from the first place that has it, or return the problem."""
    variables = os.environ if environment is None else environment
    inherited = read_inherited_places(variables).get(entry)
    candidates = [*places, *([Path(inherited)] if inherited else [])]
    path = next((place for place in candidates if place.is_file()), None)
    if path is None:
        message = f"plug-in file not found: '{entry}'"
        hint = "its path is relative to the recipe that lists it"
        return Problem("file", message, ("plugins", index), hint=hint)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PLUGIN_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        message, hint = f"plug-in '{entry}' cannot be read: {reason}", "make it readable"
        return Problem("file", message, ("plugins", index), hint=hint)
    return find_name_problem(entry, index, path, len(content)) or PluginFile(
        entry, path.absolute(), content, describe_plugin_code(path, content, index)
    )


def find_name_problem(entry: str, index: int, path: Path, size: int) -> Problem | None:
    """Return why a file cannot be a module of its own name, if it cannot."""
    where = ("plugins", index)
    if size > MAX_PLUGIN_BYTES:
        message = f"plug-in '{entry}' has more than {MAX_PLUGIN_BYTES:,} bytes"
        return Problem("usage", message, where, hint="make it an installed package")
    if not path.stem.isidentifier():
        message = f"'{path.name}' is no name of a Python module"
        return Problem("usage", message, where, hint="use letters, digits and underscores")
    if is_module_taken(path.stem):
        message = f"'{path.name}' has the name of an installed module"
        return Problem("usage", message, where, hint="rename the file")
    return None


def is_module_taken(name: str) -> bool:
    """Return whether a module of another origin than a plug-in file has this name."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return not isinstance(getattr(loaded.__spec__, "loader", None), _PluginLoader)
    if name in sys.stdlib_module_names:
        return True
    # `python -m titanrun` has the working directory in front, where the file itself may lie
    installed = [entry for entry in sys.path if entry and Path(entry) != Path.cwd()]
    return PathFinder.find_spec(name, installed) is not None


def describe_plugin_code(path: Path, content: bytes, index: int) -> NamedCode:
    """Describe a file as code that a recipe names."""
    found = hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256(json.dumps(["plug-in", path.name, found]).encode()).hexdigest()
    text = f"plug-in {path.name} ({len(content):,} bytes, sha256 {found[:16]})"
    return NamedCode("plug-in", ("plugins", index), escape_line(text), digest)


def is_plugin_allowed(file: PluginFile, ask: Callable[[NamedCode], bool] | None) -> bool:
    """Return whether a plug-in file may run: it was allowed before, or the user agrees now."""
    return is_trusted(file.code, os.environ) or (ask is not None and ask(file.code))


def get_plugin_state(file: PluginFile | Problem) -> str:
    """Return what decides whether a plug-in file runs: its content, and consent."""
    if isinstance(file, Problem):
        return file.message
    return f"{file.digest} {is_trusted(file.code, os.environ)}"


def build_untrusted_plugin_problem(file: PluginFile, index: int) -> Problem:
    """Build the problem of a plug-in file without consent."""
    message = f"plug-in '{file.entry}' has not been allowed: it would run its code here"
    hint = f"read {file.path.name}, then run the command with {TRUST_FLAG}"
    return Problem("usage", message, ("plugins", index), hint=hint)


def run_plugin_file(file: PluginFile) -> ModuleType:
    """Run a plug-in file as a module of its name, which imports by that name find."""
    loader = _PluginLoader(file)
    spec = ModuleSpec(file.module, loader, origin=str(file.path))  # type: ignore[arg-type]
    module = ModuleType(file.module)
    module.__spec__, module.__file__ = spec, str(file.path)
    linecache.checkcache(str(file.path))
    sys.modules[file.module] = module
    loader.exec_module(module)
    return module


def retire_module(module: ModuleType, name: str) -> None:
    """Give the classes of a module that a changed file replaces another module's name.

    The module stays importable by that name: a run that was resolved before builds with it.
    """
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            value.__module__ = name
    sys.modules.pop(module.__name__, None)
    sys.modules[name] = module


def publish_places(files: Sequence[PluginFile]) -> None:
    """Tell processes that this one starts where the files of its recipe lie."""
    places = read_inherited_places(os.environ)
    places |= {file.entry: str(file.path) for file in files}
    if places:
        os.environ[PLACES_VARIABLE] = json.dumps(places)


def read_inherited_places(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the files of recipes that this process or the one before it has read."""
    text = environment.get(PLACES_VARIABLE)
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
