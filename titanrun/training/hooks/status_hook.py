"""Hook that reports the number of each completed step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class StatusHook(TrainHook):
    """Call of a function with the number of each completed step.

    The call comes before anything that is due after the step.
    """

    record_step: Callable[[int], None]

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Report the step."""
        self.record_step(loop.state.step)
