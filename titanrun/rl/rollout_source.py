"""Step source of RL: generates rollouts, scores them and packs them into batches."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.config.problems import problem_error
from titanrun.distributed.heartbeat import send_heartbeat
from titanrun.models.shared.config import unwrap_auto
from titanrun.rl.config import RlConfig
from titanrun.rl.flat_rounds import FlatRounds
from titanrun.rl.fleet.fleet_runner import FleetRunner, FleetWeightSync
from titanrun.rl.prompts.prompt_dataset import PromptDataset
from titanrun.rl.rollout_metrics import compute_age_histogram, compute_rollout_metrics
from titanrun.rl.rollout_packing import PackedRollouts, pack_rollouts, shard_for_rank
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_types import Prompt, Rollout, RolloutGroup, build_rollout_training_samples
from titanrun.rl.schedule_record import ScheduleRecorder, TakeKey
from titanrun.rl.schedule_replay import ScheduleReplay
from titanrun.rl.state import RlState
from titanrun.rl.weight_sync.weight_sync import WeightSync
from titanrun.training.engine import Engine
from titanrun.training.runners.forward_backward import Loss
from titanrun.training.train_hook import StepInput
from titanrun.training.train_state import TrainState

log = logging.getLogger(__name__)

# old: older than allowed; flat: rewards without variance; future: of weights that a rollback or a
# restart discarded; error: no conversation with a reward, or lost too often
DropReason = Literal["old", "flat", "future", "error"]
AnyRolloutRunner = RolloutRunner | FleetRunner
AnyWeightSync = WeightSync | FleetWeightSync


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLayout:
    """Settings for packing rollouts into batches.

    Args:
        should_pack: whether several samples share a sequence.
        dp_rank: data-parallel rank, of `dp_size`.
    """

    seq_len: int
    local_batch_size: int
    should_pack: bool
    dp_rank: int = 0
    dp_size: int = 1


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """Payload of a step.

    Args:
        groups: rollout groups of all ranks.
        packed: the groups, packed into sequences.
        recorded: metrics recorded by the loss.
    """

    groups: Sequence[RolloutGroup]
    packed: PackedRollouts
    recorded: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RolloutSource:
    """Source of steps on rollouts of the policy.

    All ranks must call the same methods. Each rank holds the rollouts of all ranks.

    Args:
        dataloader: order of the prompts, and the position in it.
        runner: generates and scores.
        weight_sync: sends new weights to the generator.
        state: state of generation, saved in checkpoints.
        max_prompts: number of prompts of the whole run. None for no limit.
        recorder: writes down what each step takes. None: nothing is written.
        replay: gives each step what a recorded run took. None: rollouts are generated.
    """

    config: RlConfig
    layout: RolloutLayout
    engine: Engine
    loss: Loss
    dataloader: DistributedDataLoader
    prompt_dataset: PromptDataset
    runner: AnyRolloutRunner
    weight_sync: AnyWeightSync
    state: RlState
    max_prompts: int | None = None
    recorder: ScheduleRecorder | None = None
    replay: ScheduleReplay | None = None
    _num_dropped: Counter[DropReason] = field(default_factory=Counter)
    _flat_rounds: FlatRounds = field(default_factory=FlatRounds)
    # tokens with a loss: of the step under way, and of those since the last metrics
    _num_step_tokens: int = 0
    _num_trained_tokens: int = 0

    def start(self, state: TrainState) -> None:
        """Send the first weights to the generator."""
        self._record(
            "open",
            version=self.engine.policy_version,
            threads=self.config.fleet.threads,
            kv_on_update=self.config.sync.kv_on_update,
        )
        self._send_weights()

    def has_next(self) -> bool:
        """Return whether there are prompts for another step, started rollouts included."""
        if self.max_prompts is None:
            return True
        available = self._count_remaining_prompts() + len(self.state.rollout_buffer.groups)
        return available >= self.config.rollout.prompts_per_step

    def next_input(self) -> StepInput | None:
        """Generate the rollouts of one step.

        Raises:
            ProblemsFound: too many consecutive rounds of prompts had nothing to learn from.
        """
        clock = self.runner.clock
        clock.enter("train")
        key = TakeKey(self.engine.policy_version, self.state.consecutive_dropped_steps)
        groups = self._collect_groups() if self.replay is None else self.replay.get_groups(key)
        if self.recorder is not None:
            self.recorder.write_take(key, groups)
        packed = self._pack(groups)
        clock.enter("train" if packed.num_tokens else "other")
        if not packed.num_tokens:
            self._record_dropped_step()
            return None
        self.state.consecutive_dropped_steps = 0
        self._num_step_tokens = packed.num_tokens
        layout = self.layout
        batches = shard_for_rank(
            packed.batch,
            local_batch_size=layout.local_batch_size,
            dp_rank=layout.dp_rank,
            dp_size=layout.dp_size,
        )
        num_tokens = packed.batch.tokens.numel()
        return StepInput(
            batches=batches,
            loss=self.loss,
            num_tokens=num_tokens,
            num_local_tokens=num_tokens // layout.dp_size,
            payload=RolloutStep(groups, packed),
        )

    def on_update(self, step: int) -> None:
        """Send the new weights to the generator."""
        self.runner.clock.enter("other")
        self._num_trained_tokens += self._num_step_tokens
        self._send_weights()

    def on_rollback(self, step: int) -> None:
        """Drop all rollouts of newer weights, and send the restored weights to the generator.

        The position in the prompts is kept, so that the prompts since the checkpoint are skipped.
        """
        self._num_dropped["future"] += len(self.state.rollout_buffer.groups)
        self.state.rollout_buffer.groups.clear()
        self._record("rollback", version=self.engine.policy_version)
        self.weight_sync.sync_after_rollback(self.engine)

    def _send_weights(self) -> None:
        self.weight_sync.sync_weights(self.engine)
        if self.replay is not None:
            self.replay.advance(self.engine)

    def _record(self, event: str, **values: Any) -> None:
        if self.recorder is not None:
            self.recorder.write(event, **values)

    def collect_metrics(self, recorded: dict[str, float], inp: StepInput) -> dict[str, float]:
        """Return the metrics recorded by the loss in this step, and those of its rollouts."""
        payload: RolloutStep = inp.payload
        num_tokens, self._num_trained_tokens = self._num_trained_tokens, 0
        version, max_age = self.engine.policy_version - 1, self.state.rollout_buffer.max_version_lag
        metrics = (
            recorded
            | payload.recorded
            | compute_rollout_metrics(payload.groups, payload.packed, policy_version=version)
            | self.runner.collect_metrics(num_tokens=num_tokens)
        )
        for name, count in self._collect_dropped().items():
            metrics[name] = metrics.get(name, 0.0) + count
        if max_age:
            metrics |= compute_age_histogram(
                payload.groups, policy_version=version, max_age=max_age
            )
        return metrics

    def _collect_dropped(self) -> dict[str, float]:
        """Return how many groups were dropped since the last call, by reason."""
        found, self._num_dropped = self._num_dropped, Counter()
        return {f"rl/dropped_{reason}": float(found[reason]) for reason in get_args(DropReason)}

    def _collect_groups(self) -> list[RolloutGroup]:
        """Return the scored groups of one step.

        Generation runs ahead until the buffer is full.

        Raises:
            ProblemsFound: a group is too old, and such groups are not dropped.
        """
        buffer, wanted = self.state.rollout_buffer, self.config.rollout.prompts_per_step
        taken: list[RolloutGroup] = []
        while len(taken) < wanted:
            while buffer.free_slots - len(taken) > 0 and self._count_remaining_prompts() > 0:
                self._start_group(self.prompt_dataset.get_prompt(self.dataloader.next_indices()[0]))
            self.runner.generate_turn([group for group in buffer.groups if not group.is_done])
            send_heartbeat()
            for group in buffer.pop_finished(wanted - len(taken)):
                if group.is_given_up:
                    self._drop(group, "error")
                elif self._is_too_old(group):
                    self._require_drop(group)
                    self._drop(group, "old")
                else:
                    taken.append(group)
        return taken

    def _drop(self, group: RolloutGroup, reason: DropReason) -> None:
        """Count a group that was taken out of the buffer, and ask its prompt again."""
        self._num_dropped[reason] += 1
        self._record("drop", group=group.number)
        self._start_group(group.rollouts[0].question)

    def _start_group(self, prompt: Prompt) -> None:
        """Add a group without turns to the buffer."""
        group = self.runner.start_group(
            prompt,
            group_number=self.state.next_group,
            policy_version=self.engine.policy_version,
        )
        self.state.rollout_buffer.groups.append(group)
        self.state.next_group += 1
        self._record("admit", group=group.number, version=group.policy_version)

    def _is_too_old(self, group: RolloutGroup) -> bool:
        """Return whether a finished group, or a completion of it, is older than allowed."""
        version, limit = self.engine.policy_version, self.config.schedule.max_age
        if version - group.policy_version > self.state.rollout_buffer.max_version_lag:
            return True
        return limit is not None and any(
            rollout.turns and version - rollout.oldest_version > limit for rollout in group.rollouts
        )

    def _require_drop(self, group: RolloutGroup) -> None:
        """Raise ProblemsFound unless groups that are too old are dropped."""
        if unwrap_auto(self.config.schedule.on_too_old) == "drop":
            return
        lag = self.engine.policy_version - group.policy_version
        raise problem_error(
            "data",
            f"group {group.number} is too old: it was started {lag} versions of the weights before",
            path=("rl", "schedule", "on_too_old"),
            hint="use on_too_old: drop, or a larger max_age",
        )

    def _count_remaining_prompts(self) -> float:
        """Return the number of prompts not started yet, or infinity if there is no limit."""
        if self.max_prompts is None:
            return math.inf
        return self.max_prompts - int(self.dataloader.state_dict()["rows_read"])

    def _pack(self, groups: Sequence[RolloutGroup]) -> PackedRollouts:
        """Compute advantages and pack the samples that have something to learn from."""
        algorithm, samples = self.config.algorithm, []
        drops_flat = unwrap_auto(self.config.rollout.drop_zero_variance)
        for group in groups:
            scored = [rollout for rollout in group.rollouts if self._is_usable(rollout)]
            rewards = [float(rollout.reward or 0.0) for rollout in scored]
            if not rewards:
                self._num_dropped["error"] += 1
                continue
            # dropped groups count too in the baseline of later ones
            advantages = self.state.advantage_fn(rewards)
            if drops_flat and algorithm.learns_from_rewards and len(set(rewards)) == 1:
                self._num_dropped["flat"] += 1
                continue
            for rollout, advantage in zip(scored, advantages, strict=True):
                rollout.advantage = advantage
                samples += build_rollout_training_samples(rollout)
        return pack_rollouts(
            samples,
            seq_len=self.layout.seq_len,
            batch_multiple=self.layout.local_batch_size * self.layout.dp_size,
            should_pack=self.layout.should_pack,
            length_norm=algorithm.length_norm,
            max_completion_tokens=self.config.sampling.max_new_tokens,
        )

    def _is_usable(self, rollout: Rollout) -> bool:
        """Return whether the algorithm can learn from a conversation.

        One that does not learn from rewards needs none.
        """
        needs_reward = self.config.algorithm.learns_from_rewards
        return rollout.reward is not None or (
            not needs_reward and rollout.status != "error_environment"
        )

    def _record_dropped_step(self) -> None:
        """Count a round of prompts without reward variance.

        Raises:
            ProblemsFound: too many consecutive rounds had no reward variance.
        """
        self.state.consecutive_dropped_steps += 1
        self._flat_rounds.check(
            self.state.consecutive_dropped_steps, limit=self.config.rollout.stop_after_dropped
        )
