import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.environment import Place, read_place


def test_a_process_that_nobody_placed_is_alone() -> None:
    assert read_place({}) == Place(rank=0, local_rank=0, world_size=1)
    assert read_place({"RANK": ""}) == Place()


def test_the_launcher_says_which_process_this_is() -> None:
    assert read_place({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}) == Place(
        rank=5, local_rank=1, world_size=8
    )


@pytest.mark.parametrize("text", ["-1", "one", "1.0", " 1", "²"])
def test_a_rank_that_is_no_number_is_one_problem(text: str) -> None:
    with pytest.raises(ProblemsFound, match="environment variable RANK") as caught:
        read_place({"RANK": text})
    assert caught.value.exit_code == 2
