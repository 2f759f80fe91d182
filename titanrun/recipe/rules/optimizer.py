"""Rules about the optimizer."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.ranks import at


@rule("early-step-stands-alone")
def early_step_stands_alone(run: Recipe) -> Iterator[Finding]:
    """early_step_in_backward updates a parameter before the other gradients are there: their norm cannot be clipped, and pipeline
    parallelism and expert parallelism need the gradients for longer. Switch one of the two off."""
    if not getattr(run.optimizer, "early_step_in_backward", False):
        return
    clashes: list[tuple[bool, DataPath, str, str]] = [
        (run.training.max_norm is not None, ("training", "max_norm"), "clipped", "set training.max_norm: null"),
        (run.parallelism.pipeline_parallel_degree > 1, at("pipeline_parallel_degree"), "summed over microbatches", "use no pipeline"),
        (run.parallelism.expert_parallel_degree > 1, at("expert_parallel_degree"), "summed over expert ranks", "use no expert ranks"),
    ]
    for clash, path, use, help in clashes:
        if clash:
            early = ("optimizer", "early_step_in_backward")
            message = f"gradients cannot be {use} where parameters are updated in the backward pass"
            yield Finding(message, (early, path), help=f"{help}, or early_step_in_backward: false")
