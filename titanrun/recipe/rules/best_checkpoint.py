"""Rule about the checkpoints among which the best one is chosen."""

from collections.abc import Iterator
from math import gcd, lcm

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule

PATHS = (("checkpoint", "keep_best"), ("checkpoint", "interval"), ("validation", "freq"))
# saves of a run whose interval is chosen here
USUAL_SAVES = 10


@rule("best-is-validated")
def best_is_validated(run: Recipe) -> Iterator[RuleViolation]:
    """Require validations at the steps of checkpoints for keep_best.

    keep_best chooses among checkpoints that were validated after the same step. Set
    checkpoint.interval to a multiple of validation.freq, in which several fit into the run.
    """
    section, freq = run.checkpoint, run.validation.freq
    is_choosing = section.keep_best and section.enable and section.keep_latest_k
    if not is_choosing or run.validation.enable is not True or run.kind == "rl":
        return
    steps = run.training.steps if isinstance(run.training.steps, int) else None
    found = describe_choice(section.interval, freq, steps)
    if found is None:
        return
    message = (
        f"keep_best chooses among {found}: they are saved every {format_interval(section.interval)}"
        f" and validated every {format_interval(freq)}"
    )
    yield RuleViolation(
        message,
        PATHS,
        hint=suggest_intervals(section.interval, freq, steps),
        code="no-effect",
        severity="warning",
    )


def describe_choice(interval: int | str, freq: int, steps: int | None) -> str | None:
    """Return how many checkpoints are validated, None if all are, and there are several."""
    if isinstance(interval, str):
        return "the checkpoints that happen to be validated"
    if steps is None:
        every = freq // gcd(interval, freq)
        return None if every == 1 else f"1 in {every} checkpoints"
    # the last step is always saved and validated
    saved, validated = (-(-steps // each) for each in (interval, lcm(interval, freq)))
    if validated == saved > 1:
        return None
    return f"{validated} of {saved} checkpoint{'s' * (saved > 1)}"


def format_interval(interval: int | str) -> str:
    """Format an interval such as `500 steps`, `step` or `10m`."""
    if isinstance(interval, str):
        return interval
    return "step" if interval == 1 else f"{interval} steps"


def suggest_intervals(interval: int | str, freq: int, steps: int | None) -> str:
    """Return the settings with which every checkpoint is validated."""
    if steps is not None and steps < 2 * freq:
        both = max(1, steps // USUAL_SAVES)
        return f"set validation.freq and checkpoint.interval: {both}"
    if isinstance(interval, int) and (steps is None or interval < steps):
        several = max(1, interval // freq)
    else:
        several = 1 if steps is None else max(1, steps // freq // USUAL_SAVES)
    return f"set checkpoint.interval: {several * freq}"
