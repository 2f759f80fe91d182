"""What follows from `replace` for others than the model."""

from titanrun.config.problems import Problem
from titanrun.recipe.recipe import Recipe


def foreign_parts(run: Recipe) -> list[Problem]:
    """A problem for each entry whose replacement computes something that transformers' model, with the same weights, would not."""
    return [
        Problem(
            "conflict",
            f"transformers has no {entry.replacement.name} in place of {entry.match}: its model would compute something else",
            ("replace", index),
            help="export as safetensors, or train without the replacement",
        )
        for index, entry in enumerate(run.replace or ())
        if not entry.replacement.computes_the_same
    ]
