import pytest
from pydantic import ValidationError

from titanrun.components.profiling.config import ProfilingConfig


@pytest.mark.parametrize(
    "cycle", [{"profile_freq": 3}, {"profiler_warmup": 10}, {"profiler_active": 8}]
)
def test_a_cycle_holds_its_warmup_and_its_recorded_steps(cycle: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="steps is too short for"):
        ProfilingConfig.model_validate(cycle)


def test_a_cycle_may_be_no_longer_than_that() -> None:
    assert ProfilingConfig(profile_freq=4).profile_freq == 4
