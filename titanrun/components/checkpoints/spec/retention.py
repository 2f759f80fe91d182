"""Retention of the checkpoints of a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from titanrun.components.checkpoints.spec.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Checkpoints to keep after a save.

    Args:
        keep_latest_k: Number of latest checkpoints. 0 keeps all checkpoints.
        keep_every: Also keep steps divisible by this number.
        keep_best: Also keep this number of checkpoints with the lowest validation loss. NaN is the
            worst loss.
    """

    keep_latest_k: int = 0
    keep_every: int | None = None
    keep_best: int = 0

    def select_steps_to_delete(self, manifests: Mapping[int, Manifest]) -> list[int]:
        """Return the steps to delete, ascending; the keys of `manifests` must ascend."""
        if self.keep_latest_k == 0:
            return []
        steps = list(manifests)
        # 0 is the seed checkpoint, which cannot be trained again
        kept = {0, *steps[-self.keep_latest_k :], *list_best_steps(manifests)[: self.keep_best]}
        kept |= {
            step for step in steps if self.keep_every is not None and step % self.keep_every == 0
        }
        return [step for step in steps if step not in kept]


def list_best_steps(manifests: Mapping[int, Manifest]) -> list[int]:
    """Return the steps with a validation loss, the lowest loss first. NaN is the worst one."""
    losses = sorted(
        # NaN is neither below nor above any number, so that sorting by it is in no order
        (math.inf if math.isnan(found.validation_loss) else found.validation_loss, step)
        for step, found in manifests.items()
        if found.validation_loss is not None
    )
    return [step for _, step in losses]
