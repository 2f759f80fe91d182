"""Keys of other programs, by the hints of the problems that they cause in a recipe."""

from titanrun.recipe.editing.component_meanings import format_section_meaning
from titanrun.recipe.editing.key_meanings import format_key_meaning
from titanrun.recipe.migrate.program_hints import describe_program_key, describe_program_target

REMOVED = "remove it: "
WRITE = "write "
NO_SETTING = "no setting: "


def describe_program_word(word: str) -> str:
    """Return what stands for a key of another program, or why nothing does.

    A switch gets both settings where each position has one; any other key whose meaning depends on
    its value is taken as switched on. Return an empty text if no
    program has the key.
    """
    key = "_".join(word.replace("-", " ").split())
    if not key:
        return ""
    switched = [describe_program_key((key,), value) for value in (True, False)]
    if all(hint.startswith(WRITE) for hint in switched) and switched[0] != switched[1]:
        return f"for true {switched[0]}; for false {switched[1]}"
    hint = (
        format_section_meaning(key, {key: True})
        or format_key_meaning((key,), {key: True})
        or describe_program_key((key,), True)
        or describe_program_target((key,), True)
    )
    for told in (REMOVED, f"there is no '{key}' here: "):
        if hint.startswith(told):
            return NO_SETTING + hint.removeprefix(told)
    return hint.removeprefix(f"'{key}' is ").removesuffix(" here")
