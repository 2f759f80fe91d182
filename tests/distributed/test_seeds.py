import random

import numpy as np
import pytest
import torch

from titanrun.distributed.seeds import generator_for, load_random_states, random_states, seed_everything, use_deterministic_kernels

CPU = torch.device("cpu")


def draws() -> list[float]:
    """One number of every global generator; a normal one too, since python and numpy keep the second of a pair."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item(), torch.randn(()).item()]


def test_a_seed_decides_every_generator() -> None:
    seed_everything(2**40)
    first = draws()
    seed_everything(2**40)
    assert draws() == first
    seed_everything(1)
    assert not set(draws()) & set(first)


@pytest.mark.parametrize("drawn_before", [0, 1, 2])
def test_saved_states_bring_back_the_same_numbers(drawn_before: int) -> None:
    seed_everything(3)
    for _ in range(drawn_before):
        draws()
    states = random_states(CPU)
    expected = [draws() for _ in range(3)]
    seed_everything(4)
    load_random_states(states, CPU)
    assert [draws() for _ in range(3)] == expected


def test_states_are_plain_tensors() -> None:
    assert all(isinstance(state, torch.Tensor) for state in random_states(CPU).values())


def test_a_generator_of_its_own_moves_no_other() -> None:
    seed_everything(0)
    expected = torch.rand(3)
    seed_everything(0)
    own = generator_for(7, CPU)
    torch.rand(5, generator=own)
    assert torch.equal(torch.rand(3), expected)


def test_deterministic_mode_refuses_or_warns() -> None:
    try:
        use_deterministic_kernels(warn_only=False)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        use_deterministic_kernels(warn_only=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
