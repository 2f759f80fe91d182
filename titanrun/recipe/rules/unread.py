"""Rules about settings that nothing reads because what would read them is switched off."""

from collections.abc import Iterator

from titanrun.components.schedules.config import WarmupStableDecayConfig
from titanrun.config.problems import DataPath
from titanrun.config.tree import path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule

SAVING = ("folder", "interval", "keep_latest_k")
DECAY = ("decay_type", "min_lr_factor")


@rule("settings-need-validation")
def settings_need_validation(run: Recipe) -> Iterator[Finding]:
    """While validation.enable is false, nothing else in the section is read. Switch it on, or remove the rest."""
    if not run.validation.enable:
        for name in type(run.validation).model_fields:
            if name != "enable":
                yield unread(("validation", name), ("validation", "enable"), "is false", "set validation.enable: true, or remove it")


@rule("settings-need-checkpoints")
def settings_need_checkpoints(run: Recipe) -> Iterator[Finding]:
    """While checkpoint.enable is false, nothing is saved: where, how often and how many does not matter. Switch it on, or remove them."""
    if not run.checkpoint.enable:
        for name in SAVING:
            yield unread(("checkpoint", name), ("checkpoint", "enable"), "is false", "set checkpoint.enable: true, or remove it")


@rule("warning-needs-deterministic")
def warning_needs_deterministic(run: Recipe) -> Iterator[Finding]:
    """debug.deterministic_warn_only softens debug.deterministic, and means nothing without it."""
    if run.debug.deterministic_warn_only and not run.debug.deterministic:
        paths = ("debug", "deterministic_warn_only"), ("debug", "deterministic")
        yield unread(*paths, "is false", "set debug.deterministic: true, or remove it")


@rule("floor-needs-decay")
def floor_needs_decay(run: Recipe) -> Iterator[Finding]:
    """With lr_scheduler.decay_ratio 0 the learning rate stays at its peak: shape and floor of the decay are not read."""
    if isinstance(run.lr_scheduler, WarmupStableDecayConfig) and run.lr_scheduler.decay_ratio == 0:
        for name in DECAY:
            yield unread(("lr_scheduler", name), ("lr_scheduler", "decay_ratio"), "is 0", "set another decay_ratio, or remove it")


def unread(path: DataPath, switch: DataPath, state: str, help: str) -> Finding:
    """A warning about a value that somebody wrote for nothing."""
    message = f"{path[-1]} has no effect: {path_text(switch)} {state}"
    return Finding(message, (path, switch), help=help, code="no-effect", severity="warning", if_written=True)
