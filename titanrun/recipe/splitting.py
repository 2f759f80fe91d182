"""Whether the model of a finished recipe can be split over processes, as the rules about training say it."""

from titanrun.config.problems import fail
from titanrun.config.suggest import listing
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.model import lacking
from titanrun.recipe.rules.tensor_parallel import (
    class_splits_over_tp,
    heads_divide_over_tp,
    widths_divide_over_tp,
)


def refuse_split(recipe: Recipe, count: int) -> None:
    """Raises a usage problem where so many processes cannot split the model, before any of them starts."""
    if recipe.model.takes == "images" or "tensor parallelism" in lacking(recipe.model):
        raise fail(
            "usage",
            f"a {recipe.model.name} model is not split over processes here",
            help="leave --nproc out",
        )
    obstacle = obstacle_to(recipe, count)
    if obstacle is not None:
        fitting = [str(size) for size in range(1, count) if obstacle_to(recipe, size) is None]
        raise fail(
            "usage", f"--nproc {count}: {obstacle}", help=f"use an --nproc of {listing(fitting)}"
        )


def obstacle_to(recipe: Recipe, degree: int) -> str | None:
    """Why so many tensor-parallel ranks cannot have equal parts of the model; None where they can."""
    parallelism = type(recipe.parallelism).model_validate({"tensor_parallel_degree": degree})
    split = type(recipe).model_validate({**dict(recipe), "parallelism": parallelism})
    checks = (heads_divide_over_tp, widths_divide_over_tp, class_splits_over_tp)
    return next((finding.message for check in checks for finding in check(split)), None)
