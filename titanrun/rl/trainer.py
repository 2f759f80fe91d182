"""The RL loop: prompts in, answers, rewards, one optimizer step, new weights out."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from titanrun.components.data.loader import RowLoader
from titanrun.components.metrics.log import MetricLog
from titanrun.components.metrics.recorder import Recorder
from titanrun.components.metrics.throughput import Throughput
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.rl.algorithms.advantages import RunningMean, advantages_for
from titanrun.rl.algorithms.losses import per_token
from titanrun.rl.buffer import GroupWindow
from titanrun.rl.config import RlConfig
from titanrun.rl.measures import measured
from titanrun.rl.packing import Packed, pack, share_of
from titanrun.rl.recorder import RolloutRecorder
from titanrun.rl.reference import Reference
from titanrun.rl.rollouts import Rollouter
from titanrun.rl.samples import Group, training_samples
from titanrun.rl.tasks.rows import TaskRows
from titanrun.rl.validation import Examination
from titanrun.rl.weight_sync.delivery import Delivery
from titanrun.training.agreed_signals import AgreedSignals
from titanrun.training.engine import Engine
from titanrun.training.finite import FiniteGuard, NonFinite
from titanrun.training.garbage import GarbageCollection
from titanrun.training.passes import Loss
from titanrun.training.recovery import Recovery
from titanrun.training.run_checkpoints import RunCheckpoints
from titanrun.training.save_times import SaveTimes
from titanrun.training.signals import SignalRequests
from titanrun.training.state import TrainState
from titanrun.training.trainer import Outcome
from titanrun.training.watchdog import Watchdog

log = logging.getLogger(__name__)

WARN_AFTER_DROPPED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPlan:
    """The numbers that steer the loop. `rank` and `ranks`: of those that read different rows; `stop_after`: as of pretraining's plan."""

    steps: int
    row_length: int
    rows_per_pass: int
    share_rows: bool
    log_every: int
    rank: int = 0
    ranks: int = 1
    stop_after: int | None = None

    @property
    def until(self) -> int:
        """The last step of this process."""
        return self.steps if self.stop_after is None else min(self.steps, self.stop_after)


@dataclass(slots=True, kw_only=True)
class RlTrainer:
    """Trains a policy until the plan's last step or a request to stop. Every rank calls the same methods; all hold all conversations."""

    config: RlConfig
    engine: Engine
    loss: Loss
    rows: RowLoader
    questions: TaskRows
    rollouter: Rollouter
    delivery: Delivery
    state: TrainState
    plan: RlPlan
    metrics: MetricLog
    recorder: Recorder
    throughput: Throughput
    garbage: GarbageCollection
    save_times: SaveTimes
    watchdog: Watchdog
    guard: FiniteGuard
    recovery: Recovery
    progress: "Progress"
    rollout_log: RolloutRecorder
    reference: Reference | None = None
    examination: Examination | None = None
    signals: SignalRequests | AgreedSignals = field(default_factory=SignalRequests)
    checkpoints: RunCheckpoints | None = None
    on_step: Callable[[int], None] = lambda step: None
    on_first_step: Callable[[], None] = lambda: None
    has_trained: bool = False
    on_step_end: Callable[[int], None] = lambda step: None

    def fit(self) -> Outcome:
        """Runs the steps that are left. Raises ProblemsFound where nothing can be learned, NonFinite where numbers stop being numbers."""
        step, end = self.state.step, self.plan.steps
        if step >= end:
            return Outcome("finished", step, f"nothing to do: step {step} of {end}")
        self.watchdog.before_first_step()
        self.throughput.start()
        self.save_times.restart()
        self.signals.agree()
        self.delivery.deliver(self.engine)
        if step == 0:
            self._examine()
        with self.garbage:
            while self.state.step < self.plan.until and not self.signals.stop:
                groups = self._collect()
                packed = self._packed(groups)
                if packed.tokens:
                    self._step(groups, packed)
                else:
                    self._pass_over()
                self.watchdog.beat()
                self.signals.agree()
        if self.state.step == end:
            return Outcome("finished", end, f"finished: {counted(end, 'step')}")
        return self._stop()

    def _collect(self) -> list[Group]:
        """The groups of one step, scored. Generation runs ahead as far as the buffer has room."""
        window, wanted = self.progress.window, self.config.rollout.prompts_per_step
        taken: list[Group] = []
        with self.throughput.loading():
            while len(taken) < wanted:
                while window.room - len(taken) > 0:
                    question = self.questions.question(self.rows.next_numbers()[0])
                    window.groups.append(
                        self.rollouter.begin(
                            question,
                            number=self.progress.next_group,
                            version=self.engine.policy_version,
                        )
                    )
                    self.progress.next_group += 1
                self.rollouter.advance([group for group in window.groups if not group.is_done])
                self.watchdog.beat()
                taken += window.take(wanted - len(taken), version=self.engine.policy_version)
        return taken

    def _packed(self, groups: Sequence[Group]) -> Packed:
        """What can be learned from the groups, in rows."""
        samples = []
        for group in groups:
            scored = [rollout for rollout in group.rollouts if rollout.reward is not None]
            rewards = [float(rollout.reward or 0.0) for rollout in scored]
            is_flat = len(set(rewards)) <= 1 and self.config.algorithm.learns_from_rewards
            if not rewards or (is_flat and self.config.rollout.drop_zero_variance):
                continue
            for rollout, advantage in zip(scored, self.progress.advantages(rewards), strict=True):
                rollout.advantage = advantage
                samples += training_samples(rollout)
        return pack(
            samples,
            row_length=self.plan.row_length,
            multiple=self.plan.rows_per_pass * self.plan.ranks,
            share_rows=self.plan.share_rows,
            length_norm=self.config.algorithm.length_norm,
            longest_answer=self.config.sampling.max_new_tokens,
        )

    def _step(self, groups: Sequence[Group], packed: Packed) -> None:
        """One optimizer step, and the weights on their way to the generator."""
        self.progress.dropped_in_a_row = 0
        batches = share_of(
            packed.batch,
            rows_per_pass=self.plan.rows_per_pass,
            rank=self.plan.rank,
            ranks=self.plan.ranks,
        )
        if self.reference is not None:
            batches = [
                self.reference(batch, temperature=self.config.sampling.temperature)
                for batch in batches
            ]
        with self.recorder.open():
            output = self.engine.forward_backward(batches, loss=self.loss)
        recorded = per_token(
            self.engine.of_all_stages(self.recorder.flush(self.engine.loss_group)),
            tokens=packed.tokens,
        )
        self._verify(recorded["rl/logprob_diff_max"])
        update = self.engine.optim_step(
            accepts=lambda norm: self.guard.accepts(
                self.state.step + 1, loss=output.loss, grad_norm=norm
            )
        )
        if update.is_skipped:
            self._skip()
        else:
            self.recovery.after_good_step()
        numbers = self.guard.last
        if not self.has_trained:
            self.on_first_step()
        self.has_trained = True
        self.state.step += 1
        self.state.tokens_seen += packed.batch.tokens.numel()
        self.throughput.count_step(packed.batch.tokens.numel() // self.plan.ranks)
        self.delivery.deliver(self.engine)
        values = {
            "loss": numbers.loss,
            "grad_norm": numbers.grad_norm,
            "lr": update.lr,
            "tokens_seen": self.state.tokens_seen,
        }
        self._follow_up(
            values | recorded | measured(groups, packed, version=self.engine.policy_version - 1),
            groups,
        )

    def _skip(self) -> None:
        """The gradients were no numbers: the update is left out, or the run ends. Raises NonFinite."""
        error = NonFinite.of(self.guard.last)
        if self.guard.policy == "stop":
            raise error
        self.recovery.count_skip(error)
        log.warning("%s: its update is skipped", error)

    def _verify(self, difference: float) -> None:
        """Raises ProblemsFound where generator and policy do not compute the same, before anything is learned from it."""
        limit = 0.0 if self.config.batch_invariant else self.config.sync.max_logprob_diff
        if limit is not None and difference > limit:
            step = self.state.step + 1
            message = f"at step {step} the generator's log-probabilities are up to {difference:.3g} away from the policy's; {limit:g} is allowed"
            path = (
                ("rl", "batch_invariant")
                if self.config.batch_invariant
                else ("rl", "sync", "max_logprob_diff")
            )
            raise fail(
                "data",
                message,
                path=path,
                help="the generator has other weights, or computes in another precision",
            )

    def _pass_over(self) -> None:
        """Nothing was left of a step's groups: every answer to a prompt got the same reward, or none."""
        self.progress.dropped_in_a_row += 1
        count, limit = self.progress.dropped_in_a_row, self.config.rollout.stop_after_dropped
        if count >= limit:
            message = f"in {counted(count, 'step')} in a row all answers to a prompt had the same reward, or none: nothing can be learned"
            help = "use easier prompts, a reward with more than two values, more samples_per_prompt, or a higher temperature"
            raise fail("data", message, path=("rl", "rewards"), help=help)
        if count == WARN_AFTER_DROPPED:
            log.warning(
                "for %d steps all answers to a prompt had the same reward, or none; the run ends after %d",
                count,
                limit,
            )

    def _follow_up(self, values: dict[str, float], groups: Sequence[Group]) -> None:
        """What is due after a step, in this order: the records, validation, the log, a checkpoint."""
        step, is_last = self.state.step, self.state.step == self.plan.steps
        self.rollout_log.record(step, groups)
        self.garbage.after_step(step)
        self.on_step(step)
        self.watchdog.after_step(step)
        if self.checkpoints is not None:
            self.checkpoints.check()
        is_examined = self.examination is not None and self.examination.is_due(
            step, is_last=is_last
        )
        if is_examined:
            values |= self._examined()
        if is_examined or is_last or step == 1 or step % self.plan.log_every == 0:
            self.metrics.log(step, values | self.throughput.flush())
        asked = self.signals.take_save()
        if asked and self.checkpoints is None:
            log.warning("asked for a checkpoint after step %d, but this run writes none", step)
        if asked or is_last or self.save_times.is_due(step):
            self._save(is_last=is_last)
        if is_last and self.examination is not None:
            log.info("%s", self.examination.table())
        self.on_step_end(step)

    def _examine(self) -> None:
        """The rewards of held-out prompts before the first step."""
        if self.examination is not None:
            self.metrics.log(0, self._examined())

    def _examined(self) -> dict[str, float]:
        assert self.examination is not None
        with self.throughput.pause():
            return self.examination.examine(
                self.rollouter, step=self.state.step, beat=self.watchdog.beat
            )

    def _save(self, *, is_last: bool = False) -> None:
        if self.checkpoints is None:
            return
        with self.throughput.pause(), self.watchdog.saving():
            self.checkpoints.save(is_last=is_last)
        self.save_times.restart()

    def _stop(self) -> Outcome:
        """A signal asked for the end, or the plan did."""
        step = self.state.step
        by = f"by {self.signals.stop_signal}" if self.signals.stop else "as planned"
        self._save()
        saved = "saved" if self.checkpoints is not None and step > 0 else "nothing saved"
        return Outcome(
            "preempted", step, f"stopped {by} after step {step} of {self.plan.steps}, {saved}"
        )


class Progress:
    """What an RL run is in the middle of, which its checkpoints hold beside weights and the place in the data.

    Args:
        config: the section of the recipe.
        engine: whose policy version is saved.
    """

    def __init__(self, config: RlConfig, engine: Engine) -> None:
        schedule = config.schedule
        self.window = GroupWindow(
            config.rollout.prompts_per_step, schedule.target_offpolicy, schedule.window
        )
        self.engine = engine
        self.next_group = 0
        self.dropped_in_a_row = 0
        self.examined: dict[int, dict[str, float]] = {}
        self.advantages = advantages_for(getattr(config.algorithm, "advantage", "group_mean"))

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "policy_version": self.engine.policy_version,
            "next_group": self.next_group,
            "dropped_in_a_row": self.dropped_in_a_row,
            "running_mean": self.advantages.state()
            if isinstance(self.advantages, RunningMean)
            else None,
            "examined": [[step, values] for step, values in self.examined.items()],
            "groups": self.window.state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self.engine.policy_version = state["policy_version"]
        self.next_group, self.dropped_in_a_row = state["next_group"], state["dropped_in_a_row"]
        if isinstance(self.advantages, RunningMean) and state["running_mean"] is not None:
            self.advantages.load_state(state["running_mean"])
        self.window.load_state(state["groups"])
        self.examined.update((step, values) for step, values in state["examined"])
