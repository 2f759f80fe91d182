import math

import pytest
import torch

from titanrun.training.nonfinite import NonFiniteError, NonFiniteGuard


def watched(*numbers: tuple[float, float]) -> NonFiniteGuard:
    guard = NonFiniteGuard()
    for step, (loss, norm) in enumerate(numbers, start=1):
        guard.record_step(step, loss=torch.tensor(loss), grad_norm=torch.tensor(norm))
    return guard


def test_the_last_steps_numbers_are_read_as_often_as_one_likes() -> None:
    guard = watched((3.0, 1.0), (2.5, 0.5))
    assert (guard.read().step, guard.read().loss, guard.read().grad_norm) == (2, 2.5, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["loss", "gradient norm"])
def test_the_first_step_that_is_no_number_is_named(bad: float, name: str) -> None:
    poisoned = (bad, 1.0) if name == "loss" else (1.0, bad)
    with pytest.raises(NonFiniteError, match=f"^{name} is {bad} at step 2$") as caught:
        watched((3.0, 1.0), poisoned, (math.nan, math.nan)).read()
    assert (caught.value.step, caught.value.exit_code) == (2, 5)


def test_numbers_of_simulated_ranks_are_not_judged() -> None:
    guard = NonFiniteGuard(is_enabled=False)
    assert guard.should_update(1, loss=torch.tensor(math.nan), grad_norm=torch.tensor(1.0))
    assert math.isnan(guard.read().loss)
