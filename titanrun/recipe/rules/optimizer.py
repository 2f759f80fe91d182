"""Rules about the optimizer."""

from collections.abc import Iterator

from titanrun.components.optimizers.config import ParamGroup
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.parallel_dims import get_parallelism_path
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule

LARGEST_LR = 10.0
"""Learning rate from which on every optimizer diverges at once."""
LOST_SIGNS = range(2, 8)
"""Exponents of learning rates such as 2e5, in which the minus of 2e-5 was forgotten."""
OPTIMIZER_IN_BACKWARD = ("optimizer", "early_step_in_backward")


def is_optimizer_in_backward(run: Recipe) -> bool:
    """Return whether weights are updated inside the backward pass."""
    return bool(getattr(run.optimizer, "early_step_in_backward", False))


@rule("learning-rate-is-small")
def learning_rate_is_small(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about a learning rate of 10 or more.

    No optimizer trains with it: the loss is no number after a few steps. Usual rates are between
    1e-6 and 0.1. The minus of an exponent may be missing: 2e5 is 200000, 2e-5 is 0.00002.
    """
    groups: tuple[ParamGroup, ...] = getattr(run.optimizer, "param_groups", ())
    rates: list[tuple[DataPath, float | None]] = [
        (("optimizer", "lr"), getattr(run.optimizer, "lr", None)),
        *(
            (("optimizer", "param_groups", index, "lr"), group.lr)
            for index, group in enumerate(groups)
        ),
    ]
    for path, rate in rates:
        if rate is None or rate < LARGEST_LR:
            continue
        mantissa, _, exponent = f"{rate:e}".partition("e")
        meant = f"{float(mantissa):g}e-{int(exponent)}"
        name = format_path(path)
        yield RuleViolation(
            f"{name} {rate:g} is a learning rate with which the loss is no number after a few "
            "steps",
            (path,),
            hint=f"set {name}: {meant}"
            if int(exponent) in LOST_SIGNS
            else f"set {name} to a rate below 0.1, such as 1e-4",
            severity="warning",
        )


@rule("early-step-stands-alone")
def early_step_stands_alone(run: Recipe) -> Iterator[RuleViolation]:
    """Reject settings that need all gradients at once with early_step_in_backward.

    It updates a parameter before the other gradients exist: their norm cannot be clipped, updates
    cannot be skipped, and pipeline parallelism and expert parallelism need the gradients for
    longer. Switch one of the two off.
    """
    if not is_optimizer_in_backward(run):
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
            get_parallelism_path("pipeline_parallel_degree"),
            "summed over microbatches",
            "use no pipeline",
        ),
        (
            run.parallelism.expert_parallel_degree > 1,
            get_parallelism_path("expert_parallel_degree"),
            "summed over expert ranks",
            "use no expert ranks",
        ),
        (
            run.guard.non_finite == "skip",
            ("guard", "non_finite"),
            "discarded",
            "set guard.non_finite: stop",
        ),
    ]
    for clash, path, use, hint in clashes:
        if clash:
            message = f"gradients cannot be {use} with early_step_in_backward"
            yield RuleViolation(
                message,
                (OPTIMIZER_IN_BACKWARD, path),
                hint=f"{hint}, or early_step_in_backward: false",
            )


@rank_rule("early-step-needs-one-pass")
def early_step_needs_one_pass(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Require a single backward pass per step with early_step_in_backward.

    Weights are updated in the first backward pass of a step: training.global_batch_size must be
    training.local_batch_size times the number of data-parallel ranks.
    """
    degrees, batch = resolve_parallel_dims(run.parallelism, ranks), run.training.global_batch_size
    if not is_optimizer_in_backward(run) or degrees is None or batch == "auto":
        return
    pass_size = run.training.local_batch_size * degrees.dp_size
    if batch > pass_size:
        message = (
            f"global_batch_size {batch} needs several passes of {pass_size}, but "
            "early_step_in_backward allows one"
        )
        places = (
            ("training", "global_batch_size"),
            ("training", "local_batch_size"),
            OPTIMIZER_IN_BACKWARD,
        )
        yield RuleViolation(
            message,
            places,
            hint=f"set training.global_batch_size: {pass_size}, or early_step_in_backward: false",
        )
