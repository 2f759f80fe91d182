"""Limits of log-probabilities in RL follow from the numerics of policy and generator."""

from pathlib import Path

import pytest

from tests.rl.parts import TEXT
from titanrun.recipe.resolving.resolve import resolve_recipe

FLOAT8 = 'converters=[{"name": "float8_linear", "emulate": true}]'
OFF_POLICY = "rl.schedule.target_offpolicy=1"


@pytest.mark.parametrize(
    ("overrides", "largest", "mean"),
    [
        # the largest difference that was measured in float32 is 2e-6
        ((), 1e-4, 1e-5),
        ((FLOAT8,), 1e-2, 1e-5),
        (("training.mixed_precision_param=bfloat16",), 0.25, 0.02),
        ((FLOAT8, "training.mixed_precision_param=bfloat16"), 0.25, 0.02),
        ((OFF_POLICY,), None, None),
        (("rl.sync.max_logprob_diff=0.5",), 0.5, 1e-5),
    ],
)
def test_limits_are_those_of_the_least_precise_numbers(
    overrides: tuple[str, ...], largest: float | None, mean: float | None, tmp_path: Path
) -> None:
    file = tmp_path / "rl.yaml"
    file.write_text(TEXT)
    run = resolve_recipe(str(file), overrides, environment={}).run
    assert run.rl is not None
    sync = run.rl.sync
    assert (sync.max_logprob_diff, sync.max_logprob_diff_mean) == (largest, mean)
