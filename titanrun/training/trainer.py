"""The training loop: rows in, an optimizer step, and what is due after it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from numpy.typing import NDArray
from torch import Tensor

from titanrun.components.data.batch import Batch, BatchMaker
from titanrun.components.metrics.log import MetricLog
from titanrun.components.metrics.recorder import Recorder
from titanrun.components.metrics.throughput import Throughput
from titanrun.components.validation.validator import Validators
from titanrun.config.counted import counted
from titanrun.distributed.device import is_accelerator
from titanrun.models.shared.moe_balance import moe_layers
from titanrun.training.agreed_signals import AgreedSignals
from titanrun.training.config import GuardConfig
from titanrun.training.engine import Engine, StepOutput
from titanrun.training.evidence import Evidence, gather_evidence
from titanrun.training.finite import FiniteGuard, NonFinite
from titanrun.training.garbage import GarbageCollection
from titanrun.training.recovery import Recovery
from titanrun.training.replay import Replay
from titanrun.training.save_times import SaveTimes
from titanrun.training.signals import SignalRequests
from titanrun.training.state import TrainState
from titanrun.training.stragglers import StragglerWatch
from titanrun.training.watchdog import Watchdog

log = logging.getLogger(__name__)


class RowSource(Protocol):
    """This rank's rows of one global batch after the other, as long as there is another."""

    def has_next(self) -> bool: ...

    def next_rows(self) -> NDArray[Any]: ...


class Checkpoints(Protocol):
    """Saves the whole run as it is after its current step, unless that step is saved already, and takes it back to an earlier one.

    `check` raises what went wrong since. `prepare` does once, early, what would make the first save slow.
    """

    def prepare(self) -> None: ...

    def save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None: ...

    def save_seed(self) -> None: ...

    def check(self) -> None: ...

    def go_back(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The numbers that steer the loop. `rows_per_pass`: rows of one forward pass; `tokens_per_row`: of one row; `tokens_per_step`: of all
    ranks; `stop_after`: the step after which the run stops as if a signal asked for it, the schedule being that of the whole run."""

    steps: int
    rows_per_pass: int
    tokens_per_row: int
    tokens_per_step: int
    log_every: int
    stop_after: int | None = None

    @property
    def until(self) -> int:
        """The last step of this process."""
        return self.steps if self.stop_after is None else min(self.steps, self.stop_after)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How `fit` ended, after which step, and that in words. `exit_code`: the worker's, where the state alone does not say it."""

    state: Literal["finished", "preempted", "failed"]
    step: int
    message: str
    exit_code: int | None = None


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Trains until the plan's last step, the end of the data, or a request to stop."""

    engine: Engine
    rows: RowSource
    batches: BatchMaker
    state: TrainState
    plan: Plan
    metrics: MetricLog
    recorder: Recorder
    throughput: Throughput
    garbage: GarbageCollection
    save_times: SaveTimes
    signals: SignalRequests | AgreedSignals = field(default_factory=SignalRequests)
    validator: Validators | None = None
    checkpoints: Checkpoints | None = None
    prepare: Callable[[Any], Any] = lambda batch: batch
    on_step: Callable[[int], None] = lambda step: None
    on_first_step: Callable[[], None] = lambda: None
    on_step_end: Callable[[int], None] = lambda step: None
    guard: FiniteGuard = field(default_factory=FiniteGuard)
    recovery: Recovery = field(default_factory=lambda: Recovery(GuardConfig()))
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(GuardConfig()))
    replay: Replay = field(default_factory=Replay)
    stragglers: StragglerWatch = field(default_factory=StragglerWatch)
    on_bad_step: Callable[[Evidence], None] = lambda evidence: None
    has_trained: bool = False
    _lr: float = 0.0
    _logged_step: int = 0

    def fit(self) -> Outcome:
        """Runs the steps that are left. Raises NonFinite where the loss or the gradients stop being numbers."""
        step, end = self.state.step, self.plan.steps
        if step >= end:
            return Outcome("finished", step, f"nothing to do: step {step} of {end}")
        self.watchdog.before_first_step()
        self.throughput.start()
        self.save_times.restart()
        self.signals.agree()
        with self.garbage:
            while (
                self.rows.has_next() and self.state.step < self.plan.until and not self.signals.stop
            ):
                self.stragglers.begin_step()
                with self.throughput.loading():
                    rows = self.rows.next_rows()
                is_first = not self.has_trained
                if self._train(rows):
                    self._follow_up(is_last=self.state.step == end or not self.rows.has_next())
                    self.on_step_end(self.state.step)
                if is_first and self.checkpoints is not None:
                    with self.throughput.pause(), self.watchdog.saving():
                        self.checkpoints.prepare()
        step = self.state.step
        if step == end:
            return Outcome("finished", end, f"finished: {counted(end, 'step')}")
        if not self.rows.has_next():
            return Outcome(
                "finished", step, f"finished: the data ran out after step {step} of {end}"
            )
        return self._stop()

    def _train(self, rows: NDArray[Any]) -> bool:
        """One optimizer step on this rank's rows of one global batch. Says whether it is done; a bad one may lead back instead."""
        batches = self.batches.training(rows, self.plan.rows_per_pass)
        self.stragglers.begin_passes()
        batches = [self.prepare(batch) for batch in batches]
        with self.recorder.open():
            output = self.replay.forward_backward(self.engine, self.state.step + 1, batches)
            update = self.engine.optim_step(accepts=partial(self._accepts, batches, output))
        if update.is_skipped and not self._pass_over():
            return False
        if not self.has_trained:
            self.on_first_step()
        self.has_trained = True
        self.state.step += 1
        self.state.tokens_seen += self.plan.tokens_per_step
        self._lr = update.lr
        self.throughput.count_step(len(rows) * self.plan.tokens_per_row)
        self.garbage.after_step(self.state.step)
        self.on_step(self.state.step)
        self.watchdog.after_step(self.state.step)
        self.stragglers.after_step(self.state.step)
        self.signals.agree()
        return True

    def _accepts(self, batches: Sequence[Batch], output: StepOutput, grad_norm: Tensor) -> bool:
        """Whether the gradients may update the weights; what is known about those that may not is kept."""
        if self.guard.accepts(self.state.step + 1, loss=output.loss, grad_norm=grad_norm):
            self.recovery.after_good_step()
            return True
        self.on_bad_step(gather_evidence(self.engine, batches, self.guard.last))
        return False

    def _pass_over(self) -> bool:
        """What follows a step whose update was refused: the end, the next step (true), or an earlier one (false)."""
        error = NonFinite.of(self.guard.last)
        if self.guard.policy == "skip":
            self.recovery.count_skip(error)
            log.warning("%s: its update is skipped", error)
            self._forget()
            return True
        self._go_back(error)
        return False

    def _go_back(self, error: NonFinite) -> None:
        """Takes the run back to its last good checkpoint, and leaves out the data since. Raises `error` where it may not, or has none."""
        if self.guard.policy != "rollback":
            raise error
        self.recovery.count_rollback(error)
        with self.watchdog.saving():
            step = None if self.checkpoints is None else self.checkpoints.go_back()
        if step is None:
            raise error.because("there is no checkpoint to go back to")
        log.warning("%s: going back to step %d, the data since is left out", error, step)
        self._logged_step = min(self._logged_step, step)
        self._forget()

    def _forget(self) -> None:
        """Drops what a bad step left in counters: one NaN in a mean makes it useless."""
        self.recorder.drop()
        for layer in moe_layers(self.engine.model):
            layer.tokens_per_expert.zero_()

    def _follow_up(self, *, is_last: bool) -> None:
        """What is due after a step, in this order: the check for finite numbers, validation and the log, a checkpoint."""
        step = self.state.step
        if self.checkpoints is not None:
            self.checkpoints.check()
        validates = self.validator is not None and self.validator.is_due(step, is_last=is_last)
        logs = validates or is_last or step == 1 or step % self.plan.log_every == 0
        asked = self.signals.take_save()
        saves = asked or is_last or self.save_times.is_due(step)
        # reading waits for an accelerator: only where something else waits anyway, and before spoiled weights could be saved
        if logs or saves or not is_accelerator(self.engine.device):
            self.guard.read()
        validation = self._validation() if validates and step > self._logged_step else {}
        if logs and step > self._logged_step:
            self._log(validation)
        if asked and self.checkpoints is None:
            log.warning("asked for a checkpoint after step %d, but this run writes none", step)
        if saves:
            self._save(is_last=is_last, validation_loss=validation.get("validation/loss"))

    def _log(self, validation: dict[str, float]) -> None:
        """Passes on the numbers of the current step, and what was recorded since the last time."""
        numbers = self.guard.read()
        values = {
            "loss": numbers.loss,
            "grad_norm": numbers.grad_norm,
            "lr": self._lr,
            "tokens_seen": self.state.tokens_seen,
        }
        values |= self.recovery.take() | self.guard.spikes.take() | self.stragglers.take()
        self.metrics.log(
            self.state.step,
            values
            | self.throughput.flush()
            | self.recorder.flush(self.engine.loss_group)
            | validation,
        )
        self._logged_step = self.state.step

    def _validation(self) -> dict[str, float]:
        """The held-out losses; none where a signal broke it off."""
        assert self.validator is not None
        with self.throughput.pause(), self.engine.eval_mode():
            return self.validator.measure(
                lambda batch: self.engine.eval_forward(self.prepare(batch)),
                stop=self._is_asked_to_stop,
            )

    def _is_asked_to_stop(self) -> bool:
        self.watchdog.beat()
        self.signals.agree()
        return self.signals.stop

    def _save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        if self.checkpoints is None:
            return
        step = self.state.step
        try:
            with self.throughput.pause(), self.watchdog.saving():
                self.replay.compare_copies(self.engine, step)
                self.checkpoints.save(is_last=is_last, validation_loss=validation_loss)
            self.recovery.after_save(step)
        except NonFinite as error:
            self._go_back(error)
        self.save_times.restart()

    def _stop(self) -> Outcome:
        """A signal asked for the end, or the plan did: the run is saved where it stands. It has failed where a signal loses steps."""
        step = self.state.step
        by = f"by {self.signals.stop_signal}" if self.signals.stop else "as planned"
        stopped = f"stopped {by} after step {step} of {self.plan.steps}"
        if self.has_trained and self.checkpoints is None and self.signals.stop:
            return Outcome(
                "failed",
                step,
                f"{stopped}, nothing saved: this run writes no checkpoints",
                self.signals.exit_code,
            )
        if self.has_trained:
            self.guard.read()
            self._save()
        saved = "saved" if self.checkpoints is not None and step > 0 else "nothing saved"
        return Outcome("preempted", step, f"{stopped}, {saved}")
