"""Hook that computes loss and accuracy on validation data."""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from titanrun.components.metrics.held_out_history import LOSS, HeldOutHistory
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.components.validation.validator import Validator, ValidatorGroup
from titanrun.training.preference_inputs import PrepareBatchesFn
from titanrun.training.train_hook import DueEvent, TrainHook, TrainResult

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

TOKENS = "tokens"
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ValidationHook(TrainHook):
    """Validation at a fixed interval of steps and after the last step.

    A request to stop ends a validation early.

    Args:
        validator: validators of all datasets, which know when they are due.
        prepare: adds the extra inputs of the loss to batches.
        history: validations before.
        accuracy: what is counted: `tokens` whose label is the likeliest; or the name of the metric
            that a loss of replies records, such as `dpo/accuracy`. None: nothing.
    """

    validator: ValidatorGroup
    prepare: PrepareBatchesFn = list
    history: HeldOutHistory = field(default_factory=HeldOutHistory)
    accuracy: str | None = None

    def is_due(self, loop: "TrainLoop", event: DueEvent, is_last: bool) -> bool:
        """Return whether validation is due."""
        return event == "validate" and self.validator.is_due(loop.state.step, is_last=is_last)

    def on_validate(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the loss and accuracy of each set, without those that a stop interrupted."""
        values: dict[str, float] = {}
        with loop.throughput.pause(), loop.engine.eval_mode():
            for prefix, validator in self.validator:
                values |= self._validate(loop, prefix, validator)
        if LOSS in values:
            self.history.add(loop.state.step, values)
            if self.history.has_just_risen():
                log.info("%s", self.history.format_rise())
        return values

    def _validate(self, loop: "TrainLoop", prefix: str, validator: Validator) -> dict[str, float]:
        """Return loss and accuracy of one set, or nothing if a stop was requested."""
        engine, counts_tokens = loop.engine, self.accuracy == TOKENS
        # apart from the metrics of training
        with StepMetrics(engine.device).open() as recorded:
            score = validator.validate(
                lambda batch: engine.evaluate_loss(
                    self.prepare([batch]), counts_accuracy=counts_tokens
                ),
                should_stop=partial(should_stop, loop),
            )
        if score is None:
            return {}
        if self.accuracy is None or counts_tokens:
            accuracy = score.accuracy
        else:
            accuracy = recorded.flush(engine.loss_group).get(self.accuracy)
        found = {} if accuracy is None else {f"{prefix}/accuracy": accuracy}
        return {f"{prefix}/loss": score.loss, **found}

    def on_train_end(self, loop: "TrainLoop", result: TrainResult | None) -> None:
        """Log the best loss of a run that is finished."""
        if result is not None and result.state == "finished" and self.history.format_best():
            log.info("%s", self.history.format_best())


def should_stop(loop: "TrainLoop") -> bool:
    """Return whether any rank was asked to stop. Collective."""
    loop.watchdog.record_heartbeat()
    loop.signals.sync()
    return loop.signals.should_stop
