"""What can be named in a recipe: built-in modules that are imported when named, and plug-ins a recipe lists."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from titanrun.config import registry
from titanrun.config.problems import Problem
from titanrun.config.suggest import closest, listing

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MODEL_FAMILIES = {
    family: f"titanrun.models.{family}.config"
    for family in ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss", "decoder", "transformers")
}
RULE_MODULES = (
    "titanrun.recipe.rules.not_built",
    "titanrun.recipe.rules.ranks",
    "titanrun.recipe.rules.rows",
    "titanrun.recipe.rules.sources",
    "titanrun.recipe.rules.tensor_parallel",
    "titanrun.recipe.rules.context_parallel",
    "titanrun.recipe.rules.pipeline",
    "titanrun.recipe.rules.pipeline_file",
    "titanrun.recipe.rules.experts",
    "titanrun.recipe.rules.compiled",
    "titanrun.recipe.rules.converters",
    "titanrun.recipe.rules.adapters",
    "titanrun.recipe.rules.recomputing",
    "titanrun.recipe.rules.attention",
    "titanrun.recipe.rules.model",
    "titanrun.recipe.rules.data",
    "titanrun.recipe.rules.chat",
    "titanrun.recipe.rules.schedule",
    "titanrun.recipe.rules.checkpoint",
    "titanrun.recipe.rules.optimizer",
    "titanrun.recipe.rules.simulation",
    "titanrun.recipe.rules.guard",
    "titanrun.recipe.rules.preference",
    "titanrun.recipe.rules.evaluation",
    "titanrun.recipe.rules.profiling",
    "titanrun.recipe.rules.unread",
    "titanrun.recipe.rules.unread_parallel",
)
# by name: it brings e-mail and sockets along, and most recipes list no plug-in
METADATA = "importlib.metadata"
PLUGIN_GROUP = "titanrun.plugins"


def open_menu() -> None:
    """Announce every built-in component that is imported only when named."""
    registry.offer("model", MODEL_FAMILIES)


def load_rules() -> None:
    """Import every built-in rule."""
    for module in RULE_MODULES:
        import_module(module)


def plugins_installed() -> "dict[str, EntryPoint]":
    """Installed plug-ins by name."""
    return {point.name: point for point in import_module(METADATA).entry_points(group=PLUGIN_GROUP)}


def load_plugins(names: Sequence[str]) -> list[Problem]:
    """Import the plug-ins that a recipe lists; a module registers its components by defining them."""
    if not names:
        return []
    installed = plugins_installed()
    for name in names:
        if name in installed:
            installed[name].load()
    return [unknown_plugin(name, index, sorted(installed)) for index, name in enumerate(names) if name not in installed]


def unknown_plugin(name: str, index: int, installed: list[str]) -> Problem:
    """The problem with a plug-in that is not installed."""
    suggestion = closest(name, installed)
    known = f"installed: {listing(installed)}" if installed else "install the package that has it"
    help = f"did you mean '{suggestion}'?" if suggestion else known
    return Problem("unknown-name", f"unknown plug-in '{name}'", ("plugins", index), help=help, suggestion=suggestion)


def origin_of(choice: type) -> str:
    """Where a component comes from: built in, or the package that brought it."""
    package = choice.__module__.partition(".")[0]
    return "built in" if package == "titanrun" else package
