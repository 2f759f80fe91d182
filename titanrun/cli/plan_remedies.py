"""Changes of a recipe with which `titanrun plan --search` finds a layout, where none fits."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from titanrun.cli.messages import print_note
from titanrun.cli.plan_measure import build_search
from titanrun.components.optimizers.config import AdamWConfig
from titanrun.config.problems import ProblemsFound
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.plan.layout_search import LayoutSearch, search_layouts
from titanrun.recipe.plan.memory_levers import get_small_states
from titanrun.recipe.plan.split_sizes import MeasuredModel
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rules.random_start import starts_from_weights
from titanrun.sweep.validate_points import get_override_path

FACTORS = (2, 4, 8)
"""Times as many ranks, and parts of the length of a sequence, of which the first that fits is told.

Each is a search of its own, which takes seconds.
"""
WORLD_SIZE = "--world-size"
ADAPTERS = ("converters=[lora]", "converters=[qlora]")


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """Change of a plan: overrides of the recipe, or another number of ranks."""

    overrides: tuple[str, ...]
    ranks: int

    def list_words(self, ranks: int) -> list[str]:
        """Return the words of the command line that change a plan for `ranks`."""
        return [WORLD_SIZE, str(self.ranks)] if self.ranks != ranks else list(self.overrides)

    def apply(self, overrides: Sequence[str]) -> list[str]:
        """Return overrides of the recipe with this change, in place of those of the same path."""
        changed = {get_override_path(text) for text in self.overrides}
        kept = [text for text in overrides if get_override_path(text) not in changed]
        return [*kept, *self.overrides]


def iter_planned_changes(run: Recipe, ranks: int) -> Iterator[list[PlannedChange]]:
    """Yield the changes that may make a layout fit, in groups of which the smallest is told."""
    yield [PlannedChange((), ranks * factor) for factor in FACTORS]
    length = run.training.seq_len
    yield [
        PlannedChange((f"training.seq_len={length // factor}",), ranks)
        for factor in FACTORS
        if length % factor == 0
    ]
    if type(run.optimizer) is AdamWConfig:
        kept = [
            f"optimizer.{name}={value}" for name, value in get_small_states(run.optimizer).items()
        ]
        yield [PlannedChange(("optimizer.name=adamw_8bit", *kept), ranks)]
    if starts_from_weights(run) and not run.converters:
        yield [PlannedChange((words,), ranks) for words in ADAPTERS]


def find_remedies(
    options: Namespace, overrides: Sequence[str], search: LayoutSearch
) -> Iterator[PlannedChange]:
    """Yield the changes with each of which a layout fits.

    Args:
        options: Options of the command line.
        overrides: Overrides of the recipe.
        search: Search that found no layout.
    """
    print_note(options, "no layout fits: looking for a change with which one does")
    for changes in iter_planned_changes(search.run, search.ranks):
        for change in changes:
            if makes_fit(options, overrides, change, search.measured):
                yield change
                break


def makes_fit(
    options: Namespace, overrides: Sequence[str], change: PlannedChange, measured: MeasuredModel
) -> bool:
    """Return whether a layout of the changed recipe fits. Only adapters change its model."""
    words = change.apply(overrides)
    try:
        resolved = resolve_recipe(
            options.recipe, words, environment=get_environment(), ranks=change.ranks
        )
    except ProblemsFound:
        return False
    sizes = None if change.overrides and change.overrides[0] in ADAPTERS else measured
    search = build_search(options, words, resolved, change.ranks, measured=sizes)
    return bool(search_layouts(search))
