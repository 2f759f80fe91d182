"""Hook that records rollouts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.rl.rollout_recorder import RolloutRecorder
from titanrun.rl.rollout_source import RolloutStep
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class RolloutRecorderHook(TrainHook):
    """Recorder of the best and worst rollouts of each step that was not rolled back."""

    recorder: RolloutRecorder
    _payload: RolloutStep | None = None

    def on_pre_optimizer_step(self, loop: "TrainLoop", inp: StepInput, output: StepOutput) -> None:
        """Keep the rollouts until the step is done."""
        self._payload = inp.payload

    def on_step_end(self, loop: "TrainLoop") -> None:
        """Record the rollouts of the step."""
        assert self._payload is not None
        self.recorder.record(loop.state.step, self._payload.groups)
        self._payload = None
