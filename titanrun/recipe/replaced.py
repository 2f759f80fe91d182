"""Checks of `replace` entries on export."""

from titanrun.config.problems import Problem
from titanrun.recipe.recipe import Recipe


def find_export_replacement_problems(run: Recipe) -> list[Problem]:
    """Return a problem for each replacement that changes what the model computes.

    The transformers model would compute something else with the same weights.
    """
    return [
        Problem(
            "conflict",
            f"transformers has no {entry.replacement.name} in place of {entry.match}: "
            "the exported model would compute different results",
            ("replace", index),
            hint="export as safetensors, or train without the replacement",
        )
        for index, entry in enumerate(run.replace or ())
        if not entry.replacement.is_equivalent
    ]
