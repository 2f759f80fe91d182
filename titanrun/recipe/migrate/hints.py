"""What names of torchtitan are called here, for someone who writes them into a recipe."""

from typing import Any

from titanrun.recipe.migrate.conversions import CONVERTERS, OLD_CONVERTERS
from titanrun.recipe.migrate.plan import KEYS
from titanrun.recipe.migrate.source import todays


def key_hint(path: str) -> str:
    """Where a key of torchtitan stands in a recipe; empty for others, and for those that have the same path."""
    key = KEYS.get(todays(path))
    if key is None or key.target == path:
        return ""
    if key.target is None:
        return f"{path} of torchtitan: {key.how.removeprefix('left out: ')}"
    return f"{path} of torchtitan is {key.target} here"


def component_hint(name: Any) -> str:
    """The component that a registered name of torchtitan stands for."""
    if not isinstance(name, str):
        return ""
    meant = CONVERTERS.get(OLD_CONVERTERS.get(name, name))
    return f"{name} of torchtitan is {meant} here" if meant else ""
