"""Rules about profiling."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.registry import RuleViolation, rule

SNAPSHOTS = ("profiling", "enable_memory_snapshot")


@rule("snapshots-need-accelerator")
def snapshots_need_accelerator(run: Recipe) -> Iterator[RuleViolation]:
    """Require an accelerator for memory snapshots.

    A memory snapshot is the history of an accelerator's allocator; the CPU's allocator keeps none.
    Train on a GPU, or remove the setting.
    """
    if run.profiling.enable_memory_snapshot and run.device == "cpu":
        yield RuleViolation(
            "memory snapshots need an accelerator, but device is cpu",
            (SNAPSHOTS, ("device",)),
            hint="remove it, or use device: gpu",
        )
