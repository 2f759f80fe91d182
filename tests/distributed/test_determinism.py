import random

import numpy as np
import pytest
import torch

from titanrun.distributed.determinism import (
    WeightInitRng,
    enable_deterministic_algorithms,
    get_rng_states,
    seed_everything,
    set_rng_states,
)

CPU = torch.device("cpu")


def draws() -> list[float]:
    """One number of every global generator; a normal one too, since python and numpy keep the
    second of a pair."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(()).item(),
        torch.randn(()).item(),
    ]


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
    states = get_rng_states(CPU)
    expected = [draws() for _ in range(3)]
    seed_everything(4)
    set_rng_states(states, CPU)
    assert [draws() for _ in range(3)] == expected


def test_states_are_plain_tensors() -> None:
    assert all(isinstance(state, torch.Tensor) for state in get_rng_states(CPU).values())


def test_a_generator_of_its_own_moves_no_other() -> None:
    seed_everything(0)
    expected = torch.rand(3)
    seed_everything(0)
    model = torch.nn.Linear(2, 2, device="meta")
    own = WeightInitRng(7, CPU, model)
    own.seed_for_parameter(model.weight)
    torch.rand(5, generator=own)
    assert torch.equal(torch.rand(3), expected)


def test_first_weights_depend_on_the_seed_and_the_parameters_name_alone() -> None:
    def draw(seed: int, model: torch.nn.Module, name: str) -> list[float]:
        generator = WeightInitRng(seed, CPU, model)
        generator.seed_for_parameter(model.get_parameter(name))
        return torch.rand(3, generator=generator).tolist()

    whole, part = (
        torch.nn.ModuleDict({"0": torch.nn.Linear(2, 2), "1": torch.nn.Linear(2, 2)}),
        torch.nn.ModuleDict(),
    )
    part["1"] = whole["1"]
    assert draw(7, part, "1.weight") == draw(7, whole, "1.weight")
    assert draw(7, whole, "1.weight") not in (
        draw(7, whole, "0.weight"),
        draw(7, whole, "1.bias"),
        draw(8, whole, "1.weight"),
    )


def test_deterministic_mode_refuses_or_warns() -> None:
    try:
        enable_deterministic_algorithms(warn_only=False)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        enable_deterministic_algorithms(warn_only=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
