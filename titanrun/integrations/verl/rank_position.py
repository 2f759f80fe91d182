"""Place of a rank in the data-parallel layout, known before its engine is built."""

from dataclasses import dataclass

from titanrun.distributed.object_collectives import get_default_rank_group
from titanrun.distributed.process_group import is_process_group_initialized
from titanrun.distributed.rank_env import read_rank_info
from titanrun.distributed.spec.pipeline_stages import PIPELINE_SCHEDULES
from titanrun.recipe.recipe import Recipe
from titanrun.worker.process_group_setup import build_parallel_dims


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Data-parallel rank and size, and whether the rank provides the outputs of its sequences."""

    dp_rank: int
    dp_size: int
    is_output_rank: bool


def count_ranks() -> int:
    """Return the number of ranks: those of the process group, else those of the environment."""
    if is_process_group_initialized():
        return get_default_rank_group().size
    return read_rank_info().world_size


def compute_rank_position(recipe: Recipe) -> RankPosition:
    """Compute this rank's place from the degrees of a resolved recipe and the number of ranks.

    Not collective: nothing is built.

    Raises:
        ProblemsFound: the degrees do not fit the ranks.
    """
    ranks = count_ranks()
    dims = build_parallel_dims(recipe, ranks)
    is_grouped = is_process_group_initialized()
    rank = get_default_rank_group().rank if is_grouped else read_rank_info().rank
    traits = PIPELINE_SCHEDULES.get(recipe.parallelism.pipeline_parallel_schedule)
    # the last stage of a V-shaped schedule comes back to the first rank
    last_pp_rank = 0 if traits is not None and traits.is_v_shaped else dims.pp - 1
    return RankPosition(
        dp_rank=dims.get_dp_rank(rank),
        dp_size=dims.dp_size,
        is_output_rank=rank % (dims.cp * dims.tp) == 0 and dims.get_pp_rank(rank) == last_pp_rank,
    )
