"""Rules about the handling of failed steps."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.no_effect import build_no_effect_violation
from titanrun.recipe.rules.registry import RuleViolation, rule

POLICY = ("guard", "non_finite")


@rule("rollback-needs-checkpoints")
def rollback_needs_checkpoints(run: Recipe) -> Iterator[RuleViolation]:
    """Require checkpoints for guard.non_finite: rollback.

    It rolls back to the last checkpoint of the run: it needs checkpoint.enable, and load_only off.
    """
    checkpoint = run.checkpoint
    if run.guard.non_finite == "rollback" and (not checkpoint.enable or checkpoint.load_only):
        name = "load_only" if checkpoint.enable else "enable"
        message = (
            f"rollback needs checkpoints, but checkpoint.{name} is {str(checkpoint.enable).lower()}"
        )
        hint = (
            f"set checkpoint.{name}: {str(not checkpoint.enable).lower()}, or "
            "guard.non_finite: skip"
        )
        yield RuleViolation(message, (POLICY, ("checkpoint", name)), hint=hint)


@rule("replay-needs-determinism")
def replay_needs_determinism(run: Recipe) -> Iterator[RuleViolation]:
    """Require deterministic kernels for guard.replay_interval.

    It compares two forward and backward passes bit by bit, which is only meaningful for kernels
    that return the same bits twice. It needs debug.deterministic, and debug.deterministic_warn_only
    off.
    """
    if run.guard.replay_interval is None or (
        run.debug.deterministic and not run.debug.deterministic_warn_only
    ):
        return
    name, needed = (
        ("deterministic_warn_only", "false")
        if run.debug.deterministic
        else ("deterministic", "true")
    )
    message = f"replay_interval compares passes bit by bit, but debug.{name} is not {needed}"
    hint = f"set debug.{name}: {needed}, or remove guard.replay_interval"
    yield RuleViolation(message, (("guard", "replay_interval"), ("debug", name)), hint=hint)


@rule("guard-limits-need-policy")
def guard_limits_need_policy(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about guard limits that the non-finite policy does not read.

    guard.max_skips counts skipped updates and guard.max_rollbacks counts rollbacks: each is read
    only with the guard.non_finite of the same kind. guard.spike_window is read only with
    guard.spike_sigmas.
    """
    for name, policy in (("max_skips", "skip"), ("max_rollbacks", "rollback")):
        if run.guard.non_finite != policy:
            state, hint = (
                f"is {run.guard.non_finite}",
                f"set guard.non_finite: {policy}, or remove it",
            )
            yield build_no_effect_violation(("guard", name), POLICY, state, hint)
    if run.guard.spike_sigmas is None:
        yield build_no_effect_violation(
            ("guard", "spike_window"),
            ("guard", "spike_sigmas"),
            "is null",
            "remove it, or spike_sigmas",
        )
