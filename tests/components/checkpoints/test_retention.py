"""Which checkpoints of a run are kept."""

import math
from itertools import permutations

import pytest

from titanrun.components.checkpoints.spec.manifest import Manifest
from titanrun.components.checkpoints.spec.retention import RetentionPolicy


def manifest(step: int, loss: float | None) -> Manifest:
    return Manifest(
        step=step,
        holds="everything",
        layout={},
        versions={},
        recipe="",
        saved_at="",
        tensors={},
        files={},
        validation_loss=loss,
    )


LOSSES = [3.0, math.nan, 2.0, 2.5, 2.6, None, math.inf]


@pytest.mark.parametrize("keep_best", [1, 2, 4])
def test_a_loss_that_is_not_a_number_is_the_worst(keep_best: int) -> None:
    """Row A3: of {100: 3.0, 200: nan, 300: 2.0, 400: 2.5, 500: 2.6} the best was deleted."""
    policy = RetentionPolicy(keep_latest_k=1, keep_best=keep_best)
    for losses in permutations(LOSSES):
        manifests = {step: manifest(step, loss) for step, loss in enumerate(losses, start=1)}
        kept = set(manifests) - set(policy.select_steps_to_delete(manifests))
        # the oracle never compares with NaN
        best = {losses.index(loss) + 1 for loss in sorted([3.0, 2.0, 2.5, 2.6])[:keep_best]}
        assert kept == best | {7}, losses
