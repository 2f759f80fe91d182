"""Training loop: fetches input, updates the weights, validates, logs and saves."""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.components.metrics.throughput import Throughput
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.data_waits import WaitStopped, wait_for_next_step
from titanrun.training.config import GuardConfig
from titanrun.training.engine import Engine
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.loop_config import CheckpointManagerProtocol, LoopConfig
from titanrun.training.nonfinite import NonFiniteError, NonFiniteGuard
from titanrun.training.recovery_budget import RecoveryBudget
from titanrun.training.replicas.group_signals import GroupSignals
from titanrun.training.signal_requests import SignalRequests, get_stop_exit_code
from titanrun.training.synced_signals import SyncedSignals
from titanrun.training.train_hook import (
    DueEvent,
    ForwardBackwardCall,
    StepInput,
    StepSource,
    TrainHook,
    TrainResult,
    find_overriding_hooks,
    forward_backward,
)
from titanrun.training.train_state import TrainState
from titanrun.training.update_scalars import DeferredUpdate
from titanrun.training.watchdog import Watchdog

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class TrainLoop:
    """Training until the last step, the end of the data, or a request to stop.

    Args:
        guard: decides whether an update is applied. The decision is the same on all ranks.
        checkpoints: checkpoint manager. None if the run saves nothing.
        hooks: optional features, in the order in which each event calls them.
    """

    engine: Engine
    source: StepSource
    state: TrainState
    config: LoopConfig
    metrics: MetricLogger
    step_metrics: StepMetrics
    throughput: Throughput
    signals: SignalRequests | SyncedSignals | GroupSignals = field(default_factory=SignalRequests)
    guard: NonFiniteGuard = field(default_factory=NonFiniteGuard)
    recovery: RecoveryBudget = field(default_factory=lambda: RecoveryBudget(GuardConfig()))
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(GuardConfig()))
    checkpoints: CheckpointManagerProtocol | None = None
    hooks: tuple[TrainHook, ...] = ()
    _hooks_by_event: dict[str, tuple[TrainHook, ...]] = field(default_factory=dict)
    _has_trained: bool = False
    _lr: float = 0.0
    _logged_step: int = 0
    _data_error: ProblemsFound | None = None
    _stopped_wait: WaitStopped | None = None

    def train(self) -> TrainResult:
        """Run the remaining steps.

        Raises:
            NonFiniteError: the loss or a gradient is NaN or infinite, and the run cannot recover.
            ProblemsFound: the data of the next step cannot be read.
            WaitStopped: the run shall stop, and waits for the data of its first step.
        """
        step, end, result = self.state.step, self.config.steps, None
        if step >= end:
            return TrainResult("finished", step, f"nothing to do: step {step} of {end}")
        self._hooks_by_event = find_overriding_hooks(self.hooks)
        try:
            self.watchdog.start_first_step()
            self.throughput.start_interval()
            self.signals.sync()
            self.source.start(self.state)
            self._call("on_train_begin")
            while (
                self._has_next()
                and self._data_error is None
                and self.state.step < self.config.last_step
                and self._stop_signal is None
            ):
                self._run_step()
            if self._data_error is not None:
                raise self._data_error
            result = self._build_result()
        finally:
            self._call("on_train_end", result)
        return result

    def _run_step(self) -> None:
        """Train one step, then validate, log and save if due."""
        self._call("on_step_begin")
        with self.throughput.time_data_loading():
            inp = self.source.next_input()
        if inp is None:
            self.signals.sync()
            if self._has_trained and not self.source.has_next():
                self._save(is_last=True)
            return
        is_first = not self._has_trained
        for hook in self._hooks_by_event["on_input_ready"]:
            inp = hook.on_input_ready(self, inp)
        if self._update(inp):
            self._do_what_is_due(inp)
        if is_first and self.checkpoints is not None:
            with self.throughput.pause(), self.watchdog.watch_save():
                self.checkpoints.prepare()

    def _update(self, inp: StepInput) -> bool:
        """Take an optimizer step. Return False if the run was rolled back instead."""
        call: ForwardBackwardCall = partial(forward_backward, self.engine)
        for hook in self._hooks_by_event["wrap_forward_backward"]:
            call = hook.wrap_forward_backward(self, call)
        # in the optimizer step, the load balancer of experts records metrics
        with self.step_metrics.open():
            output = call(inp)
            self._call("on_pre_optimizer_step", inp, output)
            update = self.engine.optim_step(should_update=partial(self._should_update, inp, output))
        if update.is_skipped and not self._recover():
            return False
        self._has_trained = True
        self.state.step += 1
        self.state.tokens_seen += inp.num_tokens
        self._lr = update.lr
        self.throughput.count_step(inp.num_local_tokens)
        self.source.on_update(self.state.step)
        self._call("on_step_end")
        self.signals.sync()
        return True

    def _should_update(
        self, inp: StepInput, output: StepOutput, grad_norm: Tensor
    ) -> bool | DeferredUpdate:
        decision = self.guard.should_update(
            self.state.step + 1, loss=output.loss, grad_norm=grad_norm, step_input=inp
        )
        if decision:
            self.recovery.record_update()
            return decision
        self._call("on_update_rejected", inp, output, grad_norm)
        return False

    def _read_guard(self) -> None:
        """Read the values of the last steps.

        Raises:
            NonFiniteError: one of them was bad. Its outputs were computed again for the report.
        """
        try:
            self.guard.read()
        except NonFiniteError as error:
            inp: StepInput | None = error.unread_input
            if inp is not None:
                with self.step_metrics.open():
                    output = forward_backward(self.engine, inp)
                    self._call("on_update_rejected", inp, output, output.loss)
                self.engine.zero_grad()
            raise

    def _recover(self) -> bool:
        """Handle a rejected update.

        Return True to count the step, False after a rollback.
        """
        error = NonFiniteError.from_values(self.guard.last_values)
        if self.guard.policy == "skip":
            self.recovery.record_skip(error)
            log.warning("%s: optimizer step skipped", error)
            # one NaN makes a mean useless
            self.step_metrics.reset()
            return True
        self._roll_back(error)
        return False

    def _roll_back(self, error: NonFiniteError) -> None:
        """Restore the last good checkpoint, or raise `error` if that is not possible."""
        if self.guard.policy != "rollback":
            raise error
        self.recovery.record_rollback(error)
        with self.watchdog.watch_save():
            step = None if self.checkpoints is None else self.checkpoints.rollback()
        if step is None:
            raise error.with_reason("no checkpoint to roll back to")
        log.warning(
            "%s: rolling back to step %d, skipping the data consumed since then", error, step
        )
        self._logged_step = min(self._logged_step, step)
        self.step_metrics.reset()
        self.source.on_rollback(step)
        self._call("on_rollback", step)

    def _do_what_is_due(self, inp: StepInput) -> None:
        """Check the numbers, validate, log and save, in this order."""
        step = self.state.step
        is_last = step == self.config.steps or not self._has_next()
        if self.checkpoints is not None:
            self.checkpoints.check()
        validates = self._is_due("validate", is_last)
        logs = validates or is_last or step == 1 or step % self.config.log_every == 0
        logs = logs or self._is_due("log", is_last) or self._data_error is not None
        save_requested = self.signals.pop_save_request()
        saves = save_requested or is_last or self._is_due("save", is_last)
        saves = saves or self._data_error is not None
        # reading waits for the accelerator: only if something else waits, and before any save
        if logs or saves or self.guard.must_read or not self.guard.defers_checks:
            self._read_guard()
        is_new, validation = step > self._logged_step, dict[str, float]()
        for hook in self._hooks_by_event["on_validate"] if validates and is_new else ():
            validation |= hook.on_validate(self)
        if logs and is_new:
            self._log(inp, validation)
        if save_requested and self.checkpoints is None:
            log.warning("save requested at step %d, but checkpointing is disabled", step)
        if saves:
            self._save(is_last=is_last, validation_loss=validation.get("validation/loss"))
        self._call("on_step_complete", is_last)

    def _has_next(self) -> bool:
        """Return whether there is another step.

        If its data cannot be read, on all ranks, keep the problem and return True: the last step
        is logged and saved first. Likewise if the run shall stop while a rank waits for the data.
        """
        # what failed has lost its position, and would wait again
        if self._data_error is not None or self._stopped_wait is not None:
            return True
        try:
            with wait_for_next_step():
                return self.source.has_next()
        except ProblemsFound as error:
            self._data_error = error
        except WaitStopped as stopped:
            if not self._has_trained:
                raise
            self._stopped_wait = stopped
        return True

    @property
    def _stop_signal(self) -> str | None:
        """Signal that asks the run to stop, None if there is none."""
        if self._stopped_wait is not None:
            return str(self._stopped_wait)
        return self.signals.stop_signal

    def _is_due(self, event: DueEvent, is_last: bool) -> bool:
        return any(hook.is_due(self, event, is_last) for hook in self._hooks_by_event["is_due"])

    def _log(self, inp: StepInput, validation: dict[str, float]) -> None:
        """Log the values of the current step and the metrics recorded since the last line."""
        values: dict[str, float] = {
            "loss": self.guard.read().loss,
            "grad_norm": self.guard.last_values.grad_norm,
            "lr": self._lr,
            "tokens_seen": self.state.tokens_seen,
        }
        values |= self.recovery.pop_metrics()
        for hook in self._hooks_by_event["on_log"]:
            values |= hook.on_log(self)
        values |= self.throughput.flush()
        values |= self.source.collect_metrics(self.step_metrics.flush(self.engine.loss_group), inp)
        self.metrics.log(self.state.step, values | validation)
        self._logged_step = self.state.step

    def _save(self, *, is_last: bool = False, validation_loss: float | None = None) -> None:
        if self.checkpoints is None:
            return
        try:
            last_save = self.checkpoints.last_save_seconds
            with self.throughput.pause(), self.watchdog.watch_save(last_save):
                self._call("on_pre_save")
                self.checkpoints.save(is_last=is_last, validation_loss=validation_loss)
            self.recovery.record_save(self.state.step)
        except NonFiniteError as error:
            self._roll_back(error)
        self._call("on_save")

    def _build_result(self) -> TrainResult:
        """Return the result of training. Save first if training was stopped early."""
        step, end = self.state.step, self.config.steps
        if step == end:
            return TrainResult("finished", end, f"finished: {pluralize(end, 'step')}")
        after = f"after step {step} of {end}"
        if not self._has_next():
            return TrainResult("finished", step, f"finished: the data ran out {after}")
        stop = self._stop_signal
        text = f"stopped {'as planned' if stop is None else f'by {stop}'} {after}"
        if self._has_trained and self.checkpoints is None and stop is not None:
            text += ", nothing saved: this run writes no checkpoints"
            return TrainResult("failed", step, text, get_stop_exit_code(stop))
        if self._has_trained:
            self._read_guard()
            self._save()
        saved = "saved" if self.checkpoints is not None and step > 0 else "nothing saved"
        return TrainResult("preempted", step, f"{text}, {saved}")

    def _call(self, event: str, *arguments: Any) -> None:
        for hook in self._hooks_by_event[event]:
            getattr(hook, event)(self, *arguments)
