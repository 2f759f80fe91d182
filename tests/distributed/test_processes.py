import pytest
import torch
import torch.distributed as dist

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.config import CommConfig
from titanrun.distributed.environment import Place
from titanrun.distributed.processes import (
    first_decides,
    is_of_another_rank,
    is_open,
    meet,
    process_group,
    set_timeout,
)

CPU = torch.device("cpu")


def timeout_seconds() -> float:
    return dist.group.WORLD._get_backend(CPU).options._timeout.total_seconds()


def test_collectives_wait_as_long_as_the_recipe_says() -> None:
    with process_group(
        dist.HashStore(), Place(), device=CPU, comm=CommConfig(init_timeout_seconds=7)
    ):
        assert is_open()
        assert timeout_seconds() == 7
        set_timeout(3)
        assert timeout_seconds() == 3
        assert first_decides(True) is True
    assert not is_open()
    assert first_decides(False) is False


def test_a_place_without_an_address_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ProblemsFound, match="rank 1 of 2 cannot meet the others"):
        meet(Place(rank=1, world_size=2), timeout_seconds=1)


def test_the_loss_of_a_peer_is_told_from_faults_of_ones_own() -> None:
    assert is_of_another_rank(
        RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    )
    assert is_of_another_rank(dist.DistStoreError("wait timeout"))
    assert not is_of_another_rank(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
