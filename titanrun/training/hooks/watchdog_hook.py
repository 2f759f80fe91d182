"""Hook that reports each step to the watchdog."""

from typing import TYPE_CHECKING

from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


class WatchdogHook(TrainHook):
    """Restart of the watchdog's time limit after each step.

    The loop itself announces saves.
    """

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Record the step."""
        loop.watchdog.after_step(loop.state.step)
