"""Check whether the model of a resolved recipe can be split over processes.

It uses the rules for training.
"""

from titanrun.config.problems import problem_error
from titanrun.config.suggest import format_word_list
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.model import find_unsupported_features
from titanrun.recipe.rules.tensor_parallel import (
    class_splits_over_tp,
    heads_divide_over_tp,
    widths_divide_over_tp,
)


def check_tensor_parallel_split(recipe: Recipe, count: int) -> None:
    """Raise a usage problem if `count` processes cannot split the model.

    Call it before any of the processes starts.
    """
    if recipe.model.modality == "images" or "tensor parallelism" in find_unsupported_features(
        recipe.model
    ):
        raise problem_error(
            "usage",
            f"model '{recipe.model.name}' cannot be split over processes",
            hint="leave out --nproc",
        )
    obstacle = find_split_obstacle(recipe, count)
    if obstacle is not None:
        fitting = [
            str(size) for size in range(1, count) if find_split_obstacle(recipe, size) is None
        ]
        raise problem_error(
            "usage",
            f"--nproc {count}: {obstacle}",
            hint=f"use an --nproc of {format_word_list(fitting)}",
        )


def find_split_obstacle(recipe: Recipe, degree: int) -> str | None:
    """Return why the model cannot be split evenly over `degree` tensor-parallel ranks.

    Return None if it can.
    """
    parallelism = type(recipe.parallelism).model_validate({"tensor_parallel_degree": degree})
    split = type(recipe).model_validate({**dict(recipe), "parallelism": parallelism})
    checks = (heads_divide_over_tp, widths_divide_over_tp, class_splits_over_tp)
    return next((finding.message for check in checks for finding in check(split)), None)
