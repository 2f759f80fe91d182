"""Rules about the best checkpoint: what it is chosen by, and among which."""

from collections.abc import Iterator

from titanrun.config.base import dump_config
from titanrun.config.suggest import format_word_list
from titanrun.recipe.best_checkpoint import (
    describe_choice,
    format_interval,
    list_intervals,
    list_needed_settings,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule

BEST = ("checkpoint", "keep_best")
PATHS = (BEST, ("checkpoint", "interval"), ("validation", "freq"))


@rule("best-needs-validation")
def best_needs_validation(run: Recipe) -> Iterator[RuleViolation]:
    """Require validation for keep_best.

    The best checkpoint is the one with the lowest validation loss. Set validation.enable with
    validation.dataset, or validation.holdout; best-is-validated says how often.
    """
    if run.checkpoint.keep_best and not run.validation.enable:
        yield RuleViolation(
            "keep_best has no effect: validation.enable is false",
            (BEST, ("validation", "enable")),
            hint=suggest_settings(list_needed_settings(dump_config(run))),
            code="no-effect",
        )


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
        hint=suggest_settings(list_intervals(section.interval, freq, steps)),
        code="no-effect",
        severity="warning",
    )


def suggest_settings(settings: list[str]) -> str:
    """Return the hint that names settings."""
    return f"set {format_word_list(settings, conjunction='and', max_words=len(settings))}"
