"""Hook that controls Python's garbage collection."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.training.gc_control import GarbageCollection
from titanrun.training.train_hook import TrainHook, TrainResult

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class GcHook(TrainHook):
    """Garbage collection on the same steps on all ranks, instead of automatic collection."""

    garbage: GarbageCollection

    def on_train_begin(self, loop: "TrainLoop") -> None:
        """Turn automatic collection off."""
        self.garbage.__enter__()

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Collect if a collection is due."""
        self.garbage.after_step(loop.state.step)

    def on_train_end(self, loop: "TrainLoop", result: TrainResult | None) -> None:
        """Turn automatic collection on again if it was on before."""
        self.garbage.__exit__(None, None, None)
