"""Which checkpoints of a run stay."""

from collections.abc import Mapping
from dataclasses import dataclass

from titanrun.components.checkpoints.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay after a save: the latest (0: all of them), multiples of a number of steps, the best."""

    latest: int = 0
    every: int | None = None
    best: int = 0

    def leaves_over(self, manifests: Mapping[int, Manifest]) -> list[int]:
        """The steps that may go, ascending; the keys of `manifests` ascend."""
        if self.latest == 0:
            return []
        steps = list(manifests)
        losses = sorted(
            (found.validation_loss, step)
            for step, found in manifests.items()
            if found.validation_loss is not None
        )
        # 0 is the seed, which nobody can train again
        kept = {0, *steps[-self.latest :], *(step for _, step in losses[: self.best])}
        kept |= {step for step in steps if self.every is not None and step % self.every == 0}
        return [step for step in steps if step not in kept]
