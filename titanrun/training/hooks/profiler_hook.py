"""Hook that advances the profiler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class ProfilerHook(TrainHook):
    """Notification of profilers after a step and everything due after it.

    Must be the last hook.
    """

    after_step: Callable[[int], None]

    def on_step_complete(self, loop: "TrainLoop", is_last: bool) -> None:
        """Advance the profilers."""
        self.after_step(loop.state.step)
