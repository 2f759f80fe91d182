"""Numbers of any size get an answer at once: nothing counts up to them."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

# a prime
HUGE = 10**15 + 37
STREAM = "{name: text, path: texts, streaming: true}"
RECIPE = str(Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("lanes", "batch", "suggested"), [(10**15, 2 * HUGE, 2), (6, HUGE, 1), (7000, 8192, 4096)]
)
def test_lanes_that_do_not_divide_a_batch_get_a_suggestion(
    lanes: int, batch: int, suggested: int
) -> None:
    overrides = [
        f"training.dataset={STREAM}",
        f"training.lanes={lanes}",
        f"training.global_batch_size={batch}",
        "training.local_batch_size=1",
        "validation.enable=false",
    ]
    with pytest.raises(ProblemsFound) as raised:
        resolve_recipe(RECIPE, overrides, environment={})
    (found,) = (one for one in raised.value.problems if "equal shares" in one.message)
    assert f"set training.lanes: {suggested}," in str(found.hint)


@pytest.mark.timeout(60)
def test_lanes_fewer_than_ranks_are_warned_about_for_a_huge_batch() -> None:
    ranks = 96
    overrides = [
        f"training.dataset={STREAM}",
        "training.lanes=2",
        f"training.global_batch_size={ranks * HUGE}",
        "training.local_batch_size=1",
        "validation.enable=false",
    ]
    found = resolve_recipe(RECIPE, overrides, environment={}, ranks=ranks).warnings
    assert any(one.hint == f"set training.lanes: {ranks}" for one in found)
