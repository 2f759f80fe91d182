"""Hook that computes some steps twice and compares copies of weights."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from titanrun.training.engine_outputs import StepOutput
from titanrun.training.step_replay import StepReplay
from titanrun.training.train_hook import ForwardBackwardCall, StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class StepReplayHook(TrainHook):
    """Replay of steps at an interval, and comparison of weight copies before each save."""

    replay: StepReplay

    def wrap_forward_backward(
        self, loop: "TrainLoop", call: ForwardBackwardCall
    ) -> ForwardBackwardCall:
        """Return the call, wrapped so that replayed steps make it twice."""

        def compute(inp: StepInput) -> StepOutput:
            return self.replay.forward_backward(
                loop.engine, loop.state.step + 1, partial(call, inp)
            )

        return compute

    def on_pre_save(self, loop: "TrainLoop") -> None:
        """Raise CorruptionError if copies of weights or optimizer state differ."""
        self.replay.check_copies(loop.engine, loop.state.step)
