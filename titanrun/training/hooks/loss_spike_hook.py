"""Hook that logs the number of spikes of the loss or the gradient norm."""

from typing import TYPE_CHECKING

from titanrun.training.train_hook import TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


class LossSpikeHook(TrainHook):
    """Log of the number of spikes found by the guard's detector since the last line."""

    def on_log(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the number of spikes, if any."""
        return loop.guard.spike_detector.pop_metrics()
