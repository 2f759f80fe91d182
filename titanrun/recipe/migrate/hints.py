"""What names of torchtitan are called here, for someone who writes them into a recipe."""

from typing import Any

from titanrun.recipe.migrate.conversions import CONVERTERS, OLD_CONVERTERS
from titanrun.recipe.migrate.source import todays
from titanrun.recipe.migrate.torchtitan import TORCHTITAN


def key_hint(path: str) -> str:
    """Where a key of torchtitan stands in a recipe; empty for others, and for those that have the same path."""
    key = TORCHTITAN.keys.get(todays(path))
    if key is None or key.target == path:
        return ""
    if key.target is None:
        return f"{path} of torchtitan: {key.how.removeprefix('left out: ')}"
    return f"{path} of torchtitan is {key.target} here"


def section_hint(path: str) -> str:
    """Why torchtitan's section `path` has no place in a recipe; empty where it has one, or its keys have several reasons."""
    reasons = {
        key.how if key.target is None else ""
        for key in TORCHTITAN.keys.values()
        if key.path.startswith(f"{path}.")
    }
    return (
        f"{path} of torchtitan: {reasons.pop().removeprefix('left out: ')}"
        if len(reasons) == 1 and all(reasons)
        else ""
    )


def component_hint(name: Any) -> str:
    """The component that a registered name of torchtitan stands for."""
    if not isinstance(name, str):
        return ""
    meant = CONVERTERS.get(OLD_CONVERTERS.get(name, name))
    return f"{name} of torchtitan is {meant} here" if meant else ""
