"""The metrics section, and the tracker slot."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict
from titanrun.config.fields import bookkeeping, component
from titanrun.config.types import PositiveInt, RunPath


class TrackerConfig(ComponentConfig):
    """A place that receives every logged metric beside metrics.jsonl."""

    slot: ClassVar = "trackers"
    is_slot: ClassVar = True


class TensorBoardConfig(TrackerConfig):
    """TensorBoard event files. Needs the extra `tensorboard`."""

    name: Literal["tensorboard"] = bookkeeping("tensorboard", resume=True)
    builds: ClassVar = "titanrun.components.metrics.tensorboard:TensorBoardTracker"
    extra: ClassVar = "tensorboard"
    folder: RunPath = bookkeeping("tensorboard", resume=True)
    """Folder of the event files inside the run directory."""


class MetricsConfig(Config):
    """What is logged, how often, and to where."""

    log_freq: PositiveInt = bookkeeping(10, unit="steps", resume=True)
    """Steps between logged lines; the first step is always logged."""
    disable_color_printing: bool = bookkeeping(False, resume=True)
    """Whether the console shows no colours; NO_COLOR does the same for one shell."""
    save_for_all_ranks: bool = bookkeeping(False, resume=True)
    """Whether every rank writes its metrics, into `ranks/rank-<rank>/`; else only the first, whose loss is that of all."""
    trackers: tuple[TrackerConfig, ...] = component(())
    """Further receivers of the metrics; metrics.jsonl is always written."""

    @model_validator(mode="after")
    def no_tracker_twice(self) -> Self:
        """Two that are the same would write into the same files."""
        for number, tracker in enumerate(self.trackers):
            if tracker in self.trackers[:number]:
                first = self.trackers.index(tracker) + 1
                message = f"trackers {first} and {number + 1} are the same: {tracker.name}"
                raise conflict(message, "trackers", help="remove one, or let them write into different folders")
        return self
