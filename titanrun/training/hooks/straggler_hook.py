"""Hook that detects slow ranks, on which all other ranks wait."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.stragglers import StragglerDetector
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class StragglerHook(TrainHook):
    """Measurement of this rank's own work in each step.

    Must precede hooks that communicate in `on_input_ready`.

    Args:
        detector: measures this rank and compares ranks.
        includes_input: whether loading the input is this rank's own work. False for RL, in which
            ranks generate together.
    """

    detector: StragglerDetector
    includes_input: bool = True

    def on_step_begin(self, loop: "TrainLoop") -> None:
        """Start measuring."""
        self.detector.mark_step_start()

    def on_input_ready(self, loop: "TrainLoop", inp: StepInput) -> StepInput:
        """Stop measuring until the forward pass."""
        if not self.includes_input:
            self.detector.mark_step_start()
        self.detector.mark_collectives_start()
        return inp

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Compare ranks if a window of steps is complete. Collective."""
        self.detector.after_step(loop.state.step)

    def on_log(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the slow rank and its ratio, if any."""
        return self.detector.pop_metrics()
