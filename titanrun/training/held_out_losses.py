"""Held-out losses of a run so far: the best one, and how long they have risen."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

# rises in a row after which more steps rarely help
RISES_TO_TELL = 3


@dataclass(slots=True)
class HeldOutLosses:
    """Losses on the held-out data by step, oldest first.

    Args:
        losses: Steps with their losses, such as those of a resumed run.
    """

    losses: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, loss: float) -> None:
        """Add the loss after a step. After a rollback it replaces those of later steps."""
        self.losses = {other: value for other, value in self.losses.items() if other < step}
        self.losses[step] = loss

    def find_best_step(self) -> int | None:
        """Return the first step with the lowest loss, None without losses."""
        return min(self.losses, key=lambda step: self.losses[step], default=None)

    def has_just_risen(self) -> bool:
        """Return whether the last losses have risen as often as it takes to say so, just now."""
        last = list(self.losses.values())[-RISES_TO_TELL - 2 :]
        rises = [later > earlier for earlier, later in pairwise(last)]
        recent, before = rises[-RISES_TO_TELL:], rises[:-RISES_TO_TELL]
        return len(recent) == RISES_TO_TELL and all(recent) and not any(before)

    def format_rise(self) -> str:
        """Format where the losses began to rise, and which checkpoint is the best."""
        begin = list(self.losses)[-RISES_TO_TELL - 1]
        best = self.find_best_step()
        return (
            f"held-out loss rises since step {begin}: checkpoint step-{best} is the best "
            "(checkpoint.keep_best)"
        )

    def format_best(self) -> str:
        """Format the best of several losses, such as `best held-out loss: 1.329 at step 300`.

        Return an empty text for fewer.
        """
        best = self.find_best_step()
        if best is None or len(self.losses) < 2:
            return ""
        return f"best held-out loss: {self.losses[best]:.5f} at step {best}"


def load_held_out_losses(
    metrics: Iterable[dict[str, float]], *, name: str, last_step: int
) -> HeldOutLosses:
    """Return the losses of a run up to a step, from the lines of its metrics."""
    return HeldOutLosses(
        {
            int(line["step"]): float(line[name])
            for line in metrics
            if name in line and line["step"] <= last_step
        }
    )
