"""Hook that decides when checkpoints are saved."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.checkpoint_schedule import CheckpointSchedule
from titanrun.training.train_hook import DueEvent, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class CheckpointScheduleHook(TrainHook):
    """Schedule of saves by number of steps or by time."""

    schedule: CheckpointSchedule

    def on_train_begin(self, loop: "TrainLoop") -> None:
        """Start the first interval."""
        self.schedule.restart()

    def is_due(self, loop: "TrainLoop", event: DueEvent, is_last: bool) -> bool:
        """Return whether a save is due.

        Collective if the interval is a duration.
        """
        return event == "save" and self.schedule.is_due(loop.state.step)

    def on_save(self, loop: "TrainLoop") -> None:
        """Start the next interval."""
        self.schedule.restart()
