"""Rules about what records a run."""

from collections.abc import Iterator

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule

SNAPSHOTS = ("profiling", "enable_memory_snapshot")


@rule("snapshots-need-accelerator")
def snapshots_need_accelerator(run: Recipe) -> Iterator[Finding]:
    """A memory snapshot is what an accelerator's allocator remembers; the CPU's remembers nothing. Train on a GPU, or leave it out."""
    if run.profiling.enable_memory_snapshot and run.device == "cpu":
        yield Finding(
            "a run on the CPU has no memory snapshots",
            (SNAPSHOTS, ("device",)),
            help="leave it out, or use device: gpu",
        )
