"""Hook that computes the loss on validation data."""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from titanrun.components.validation.validator import ValidatorGroup
from titanrun.training.held_out_losses import HeldOutLosses
from titanrun.training.preference_inputs import PrepareBatchesFn
from titanrun.training.train_hook import DueEvent, TrainHook, TrainResult

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

LOSS = "validation/loss"
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ValidationHook(TrainHook):
    """Validation at a fixed interval of steps and after the last step.

    A request to stop ends a validation early.

    Args:
        validator: validates all datasets, and knows when they are due.
        prepare: adds the extra inputs of the loss to batches.
        history: losses of the steps before.
    """

    validator: ValidatorGroup
    prepare: PrepareBatchesFn = list
    history: HeldOutLosses = field(default_factory=HeldOutLosses)

    def is_due(self, loop: "TrainLoop", event: DueEvent, is_last: bool) -> bool:
        """Return whether validation is due."""
        return event == "validate" and self.validator.is_due(loop.state.step, is_last=is_last)

    def on_validate(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the validation losses, or nothing if a stop was requested."""
        with loop.throughput.pause(), loop.engine.eval_mode():
            losses = self.validator.validate(
                lambda batch: loop.engine.evaluate_loss(self.prepare([batch])),
                should_stop=partial(should_stop, loop),
            )
        if LOSS in losses:
            self.history.add(loop.state.step, losses[LOSS])
            if self.history.has_just_risen():
                log.info("%s", self.history.format_rise())
        return losses

    def on_train_end(self, loop: "TrainLoop", result: TrainResult | None) -> None:
        """Log the best loss of a run that is finished."""
        if result is not None and result.state == "finished" and self.history.format_best():
            log.info("%s", self.history.format_best())


def should_stop(loop: "TrainLoop") -> bool:
    """Return whether any rank was asked to stop. Collective."""
    loop.watchdog.record_heartbeat()
    loop.signals.sync()
    return loop.signals.should_stop
