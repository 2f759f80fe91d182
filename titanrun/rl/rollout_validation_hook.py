"""Hook that measures rewards on validation prompts."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.rl.rollout_source import AnyRolloutRunner
from titanrun.rl.rollout_validation import RolloutValidator
from titanrun.training.train_hook import DueEvent, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RolloutValidationHook(TrainHook):
    """Validation before the first step, at a fixed interval, and after the last step."""

    validator: RolloutValidator
    runner: AnyRolloutRunner

    def on_train_begin(self, loop: "TrainLoop") -> None:
        """Log the rewards of the initial weights as step 0."""
        if loop.state.step == 0:
            loop.metrics.log(0, self.on_validate(loop))

    def is_due(self, loop: "TrainLoop", event: DueEvent, is_last: bool) -> bool:
        """Return whether validation is due."""
        return event == "validate" and self.validator.is_due(loop.state.step, is_last=is_last)

    def on_validate(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the metrics of completions to all validation prompts. Collective."""
        with loop.throughput.pause(), self.runner.clock.within("validation"):
            return self.validator.validate(
                self.runner, step=loop.state.step, on_turn_end=send_heartbeat
            )

    def on_step_complete(self, loop: "TrainLoop", is_last: bool) -> None:
        """Log the first and last results after the last step."""
        if is_last:
            log.info("%s", self.validator.format_table())
