"""Batch sizes that do not divide over the ranks: those that are named instead do."""

import re

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

SIZES = re.compile(r"training\.local_batch_size=\d+ training\.global_batch_size=\d+")


def find_hint(ranks: int, *sizes: str) -> str | None:
    try:
        ranked = f"launch.nproc_per_node={ranks}"
        resolve_recipe("llama3_debug", [ranked, *sizes], environment={}, ranks=ranks)
    except ProblemsFound as found:
        (problem,) = found.problems
        assert problem.rule == "batch-sizes-divide"
        return problem.hint
    return None


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("local", "total"), [(1, 1), (8, 12), (4, 6), (8, 24), (8, 1000), (5, 7)])
def test_sizes_in_the_help_work_when_typed(ranks: int, local: int, total: int) -> None:
    written = f"training.local_batch_size={local}", f"training.global_batch_size={total}"
    hint = find_hint(ranks, *written)
    if hint is None:
        assert total % (local * ranks) == 0
        return
    named = SIZES.findall(hint)
    assert named
    if total % ranks == 0:
        assert named[0].endswith(f"={total}")
    for sizes in named:
        assert find_hint(ranks, *sizes.split()) is None
