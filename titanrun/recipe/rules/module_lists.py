"""Check of lists of modules that together are the whole model."""

from collections.abc import Iterator, Sequence

from titanrun.config.problems import DataPath
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe.rules.registry import RuleViolation

LAYERS = (("model", "n_layers"), ("model", "flavor"))


def find_cover_violations(
    parts: Sequence[Sequence[str]], modules: Sequence[str], root: DataPath, *, noun: str
) -> Iterator[RuleViolation]:
    """Yield what keeps each of `modules` from being in exactly one of the parts.

    Args:
        parts: names of the modules of each part.
        modules: names of all modules.
        root: path of the parts in the recipe.
        noun: what a part is called.
    """
    places = dict[str, DataPath]()
    named = [
        ((*root, index, item), name)
        for index, part in enumerate(parts)
        for item, name in enumerate(part)
    ]
    for path, name in named:
        if name in places:
            yield RuleViolation(
                f"module '{name}' is in two {noun}s", (path, places[name]), hint="list it once"
            )
        elif name not in modules:
            closest = None if name.startswith("layers.") else find_closest(name, modules)
            hint = (
                f"did you mean '{closest}'?"
                if closest
                else f"use one of {format_word_list(modules)}"
            )
            yield RuleViolation(
                f"module '{name}' not found in the model", (path, *LAYERS), hint=hint
            )
            places.setdefault(closest or name, path)
        places.setdefault(name, path)
    for index, part in enumerate(parts):
        if not part:
            yield RuleViolation(
                f"{noun} {index} is empty",
                ((*root, index), root),
                hint=f"list at least one module in every {noun}",
            )
    missing = [name for name in modules if name not in places]
    if missing:
        yield RuleViolation(
            f"no {noun} has {format_word_list(missing, conjunction='and')}",
            (root, *LAYERS),
            hint="list every module of the model",
        )
