"""Rules about the optimizer."""

from collections.abc import Iterator

from titanrun.config.problems import DataPath
from titanrun.distributed.degrees import degrees_of
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rank_rule, rule
from titanrun.recipe.rules.ranks import at

EARLY = ("optimizer", "early_step_in_backward")


def steps_early(run: Recipe) -> bool:
    """Whether weights are updated inside the backward pass."""
    return bool(getattr(run.optimizer, "early_step_in_backward", False))


@rule("early-step-stands-alone")
def early_step_stands_alone(run: Recipe) -> Iterator[Finding]:
    """early_step_in_backward updates a parameter before the other gradients are there: their norm cannot be clipped, no update can be
    skipped, and pipeline parallelism and expert parallelism need the gradients for longer. Switch one of the two off."""
    if not steps_early(run):
        return
    clashes: list[tuple[bool, DataPath, str, str]] = [
        (
            run.training.max_norm is not None,
            ("training", "max_norm"),
            "clipped",
            "set training.max_norm: null",
        ),
        (
            run.parallelism.pipeline_parallel_degree > 1,
            at("pipeline_parallel_degree"),
            "summed over microbatches",
            "use no pipeline",
        ),
        (
            run.parallelism.expert_parallel_degree > 1,
            at("expert_parallel_degree"),
            "summed over expert ranks",
            "use no expert ranks",
        ),
        (
            run.guard.non_finite == "skip",
            ("guard", "non_finite"),
            "left out",
            "set guard.non_finite: stop",
        ),
    ]
    for clash, path, use, help in clashes:
        if clash:
            message = f"gradients cannot be {use} where parameters are updated in the backward pass"
            yield Finding(message, (EARLY, path), help=f"{help}, or early_step_in_backward: false")


@rank_rule("early-step-needs-one-pass")
def early_step_needs_one_pass(run: Recipe, ranks: int | None) -> Iterator[Finding]:
    """early_step_in_backward updates weights in the first backward pass of a step, so that there can be one only:
    training.global_batch_size must be what the data-parallel ranks take in one pass of training.local_batch_size rows each."""
    degrees, batch = degrees_of(run.parallelism, ranks), run.training.global_batch_size
    if not steps_early(run) or degrees is None or batch == "auto":
        return
    rows = run.training.local_batch_size * degrees.batch
    if batch > rows:
        message = f"a step of {batch} rows takes several passes of {rows}, and the first of them updates the weights"
        places = (("training", "global_batch_size"), ("training", "local_batch_size"), EARLY)
        yield Finding(
            message,
            places,
            help=f"set training.global_batch_size: {rows}, or early_step_in_backward: false",
        )
