"""Rules about what is done when a step goes wrong."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.unread import unread

POLICY = ("guard", "non_finite")


@rule("rollback-needs-checkpoints")
def rollback_needs_checkpoints(run: Recipe) -> Iterator[Finding]:
    """guard.non_finite: rollback goes back to the last checkpoint of the run: it needs checkpoint.enable, and load_only off."""
    checkpoint = run.checkpoint
    if run.guard.non_finite == "rollback" and (not checkpoint.enable or checkpoint.load_only):
        name = "load_only" if checkpoint.enable else "enable"
        message = f"rollback goes back to a checkpoint, and this run writes none: checkpoint.{name} is {str(checkpoint.enable).lower()}"
        help = f"set checkpoint.{name}: {str(not checkpoint.enable).lower()}, or guard.non_finite: skip"
        yield Finding(message, (POLICY, ("checkpoint", name)), help=help)


@rule("replay-needs-determinism")
def replay_needs_determinism(run: Recipe) -> Iterator[Finding]:
    """guard.replay_interval compares two passes bit by bit: only kernels that give the same bits twice say anything, so it needs
    debug.deterministic, and debug.deterministic_warn_only off."""
    if run.guard.replay_interval is None or (
        run.debug.deterministic and not run.debug.deterministic_warn_only
    ):
        return
    name, needed = (
        ("deterministic_warn_only", "false")
        if run.debug.deterministic
        else ("deterministic", "true")
    )
    message = f"two passes are compared bit by bit, and may differ without a fault while debug.{name} is not {needed}"
    help = f"set debug.{name}: {needed}, or remove guard.replay_interval"
    yield Finding(message, (("guard", "replay_interval"), ("debug", name)), help=help)


@rule("guard-limits-need-policy")
def guard_limits_need_policy(run: Recipe) -> Iterator[Finding]:
    """guard.max_skips counts skipped updates, guard.max_rollbacks the times the run went back, guard.spike_window looks for spikes:
    each is read only where guard.non_finite, or guard.spike_sigmas, asks for that."""
    for name, policy in (("max_skips", "skip"), ("max_rollbacks", "rollback")):
        if run.guard.non_finite != policy:
            state, help = (
                f"is {run.guard.non_finite}",
                f"set guard.non_finite: {policy}, or remove it",
            )
            yield unread(("guard", name), POLICY, state, help)
    if run.guard.spike_sigmas is None:
        yield unread(
            ("guard", "spike_window"),
            ("guard", "spike_sigmas"),
            "is null",
            "remove it, or spike_sigmas",
        )
