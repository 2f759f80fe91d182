"""Hints for torchtitan names that someone writes into a recipe."""

from typing import Any

from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_reader import update_old_path
from titanrun.recipe.migrate.torchtitan_values import CONVERTERS, OLD_CONVERTERS


def format_key_hint(path: str) -> str:
    """Return where a key of torchtitan belongs in a recipe.

    Return an empty text for other keys, and for those with the same path.
    """
    key = TORCHTITAN.keys.get(update_old_path(path))
    if key is None or key.target == path:
        return ""
    if key.target is None:
        return f"{path} of torchtitan: {key.how.removeprefix('left out: ')}"
    return f"{path} of torchtitan is {key.target} here"


def is_renamed_key(path: str, meant: str) -> bool:
    """Return whether a key of torchtitan is `meant` in a recipe."""
    key = TORCHTITAN.keys.get(update_old_path(path))
    return key is not None and key.target == meant


def format_section_hint(path: str) -> str:
    """Return why torchtitan's section `path` has no place in a recipe.

    Return an empty text if it has one, or if its keys have several reasons.
    """
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


def format_component_hint(name: Any) -> str:
    """Return a hint for the component that a registered name of torchtitan stands for."""
    if not isinstance(name, str):
        return ""
    meant = CONVERTERS.get(OLD_CONVERTERS.get(name, name))
    return f"{name} of torchtitan is {meant} here" if meant else ""
