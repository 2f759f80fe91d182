"""Settings that someone writes as options of a command, as in other programs."""

import re
from collections.abc import Iterator, Sequence

from titanrun.config.key_suggestions import iter_field_paths
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.recipe import builtins
from titanrun.recipe.editing.synonym_table import SAME_MEANING, SYNONYMS
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.reference.program_words import describe_program_word
from titanrun.recipe.reference.tool_words import find_tool_word

NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?|true|false", re.IGNORECASE)
PATH = re.compile(r"[a-z_0-9]+(\.[a-z_0-9]+)+")
"""Path of a setting within a section."""
MAX_SETTINGS = 3


def describe_option_setting(option: str, value: str | None) -> str:
    """Return the override to write for an unknown option, an empty text if no setting is known.

    Of its value only a number is repeated, or true or false: others may be secrets.
    """
    builtins.register_builtins()
    word = option.lstrip("-").replace("-", "_").lower()
    shown = value if value is not None and NUMBER.fullmatch(value) else "VALUE"
    found = [f"{path}={shown}" for path in iter_setting_paths(word)]
    if found:
        return f"write {format_word_list(found[:MAX_SETTINGS])}"
    is_known = find_tool_word(word) is not None or bool(describe_program_word(word))
    return f"titanrun explain {word} tells what does it here" if is_known else ""


def describe_spaced_override(word: str, rest: Sequence[str]) -> str:
    """Return the override to write for a setting with a space or a colon before its value.

    Args:
        word: The path or the name of a setting, with a colon perhaps.
        rest: The words after it.
    """
    builtins.register_builtins()
    path = word.removesuffix(":")
    value = next((one for one in rest if one != "="), "")
    if PATH.fullmatch(path) and path.partition(".")[0] in get_recipe_class().model_fields:
        shown = value if NUMBER.fullmatch(value) else "VALUE"
        return f"write {path}={shown}, without a space"
    return describe_option_setting(path, value) if any(iter_setting_paths(path)) else ""


def iter_setting_paths(word: str) -> Iterator[str]:
    """Yield the settings of a name, or of one with the same meaning, nearest to the top."""
    names = (word, *(SYNONYMS[word] if word in SAME_MEANING else ()))
    places = [place for name in names for place in iter_field_paths(get_recipe_class(), {}, name)]
    least = min(map(len, places), default=0)
    yield from (format_path(place) for place in places if len(place) == least)
