import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.rank_env import RankInfo, read_rank_info


def test_a_process_that_nobody_placed_is_alone() -> None:
    assert read_rank_info({}) == RankInfo(rank=0, local_rank=0, world_size=1)
    assert read_rank_info({"RANK": ""}) == RankInfo()


def test_the_launcher_says_which_process_this_is() -> None:
    assert read_rank_info({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}) == RankInfo(
        rank=5, local_rank=1, world_size=8
    )


@pytest.mark.parametrize("text", ["-1", "one", "1.0", " 1", "²"])
def test_a_rank_that_is_no_number_is_one_problem(text: str) -> None:
    with pytest.raises(ProblemsFound, match="environment variable RANK") as caught:
        read_rank_info({"RANK": text})
    assert caught.value.exit_code == 2
