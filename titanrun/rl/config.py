"""The rl section: prompts, completions, rewards and the algorithm."""

from typing import Annotated, Literal

from annotated_types import Interval

from titanrun.components.data.config import DatasetConfig
from titanrun.config.base import Config
from titanrun.config.fields import (
    ReadWhen,
    bookkeeping,
    component,
    numerics,
    performance,
    section,
)
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt, Text
from titanrun.rl.algorithms.config import AlgorithmConfig
from titanrun.rl.environments.config import EnvironmentConfig
from titanrun.rl.fleet.config import WITH_PROCESSES, FleetConfig
from titanrun.rl.generators.config import GeneratorConfig, SamplingConfig
from titanrun.rl.rewards.config import RewardConfig

IS_TEACHER = ReadWhen(
    "teacher-is-the-reference",
    ".reference",
    "is not teacher",
    "set reference: teacher, or remove teacher",
    values=("teacher",),
)


class RolloutConfig(Config):
    """Collection of completions."""

    prompts_per_step: PositiveInt = numerics(8, unit="prompts")
    """Prompts per optimizer step."""
    samples_per_prompt: PositiveInt = numerics(8, unit="completions")
    """Completions of each prompt, which form a group and are compared with each other."""
    max_tokens: PositiveInt | None = numerics(None, unit="tokens", examples=[512])
    """Longest conversation including the prompt. Null: training.seq_len."""
    renderer: Literal["plain", "chat"] = numerics("plain")
    """plain: prompts without formatting; chat: prompts in the tokenizer's chat template."""
    drop_zero_variance: OrAuto[bool] = numerics("auto")
    """Whether to drop groups with equal rewards.

    `auto`: if they have no learning signal, so not with the advantage running_mean, a KL penalty,
    an entropy term, or ref_kl."""
    stop_after_dropped: PositiveInt = bookkeeping(20, unit="rounds")
    """Consecutive rounds of prompts without any remaining group, which make no step, after which
    the run ends with an error."""
    truncation_reward: float | None = numerics(None, examples=[0.0])
    """Reward of a truncated completion, instead of all others. Null: rewarded like any other."""
    error_reward: float | None = numerics(None, examples=[-1.0])
    """Reward of a conversation whose environment failed. Null: it is dropped and counted."""


OFF_POLICY = ReadWhen(
    rule="settings-need-older-completions",
    switch="rl.schedule.target_offpolicy",
    state="is 0",
    hint="set rl.schedule.target_offpolicy, or remove it",
    not_values=(0,),
)


WITH_REPLAY = ReadWhen(
    rule="replay-level-needs-a-replay",
    switch="rl.schedule.replay",
    state="is null",
    hint="set rl.schedule.replay, or remove it",
    not_values=(None,),
)


class AsyncConfig(Config):
    """Asynchrony of generation and training."""

    target_offpolicy: NonNegativeInt = numerics(0, unit="steps")
    """Off-policy lag: steps that completions may be older than the weights they train.

    With 0, every completion is from the weights that it trains."""
    window: Fraction = numerics(0.3, read_when=OFF_POLICY)
    """Fraction of the waiting groups from which finished groups are taken first.

    It is counted from the oldest group."""
    max_age: NonNegativeInt | None = numerics(
        None, unit="steps", examples=[1], read_when=OFF_POLICY
    )
    """Steps that a completion may be older than the weights it trains.

    Null: as many as target_offpolicy and window allow."""
    on_too_old: OrAuto[Literal["error", "drop"]] = numerics("auto", read_when=OFF_POLICY)
    """What happens to a group with an older completion than allowed.

    error: the run ends; drop: it is dropped and counted (`rl/dropped_old`), and its prompt is asked
    again. `auto`: drop with max_age, else error, since no group gets older than allowed then."""
    update_in_flight: bool = numerics(True, read_when=WITH_PROCESSES)
    """Whether the processes of a fleet load new weights while they generate a completion.

    The rest of the completion is then of the new weights. If false, they load them between turns.
    """
    record: bool = bookkeeping(False, resume=True)
    """Whether to write the completions of each step, and who generated them when, for `replay`.

    The file is schedule.jsonl in the run directory."""
    replay: Text | None = numerics(None, examples=["runs/first"])
    """Run directory whose recorded completions are trained on instead of new ones.

    The weights are then those of the recorded run, bit by bit, whatever generated for it."""
    replay_level: Literal["completions", "schedule"] = bookkeeping(
        "completions", resume=True, read_when=WITH_REPLAY
    )
    """What is repeated of the recorded run.

    completions: training; schedule: also generation, in one process and with the weights, batches
    and order of the recorded one. The run ends at the first token that differs."""


IN_FLIGHT = (
    WITH_PROCESSES,
    ReadWhen(
        rule="kv-updates-need-updates-in-flight",
        switch="rl.schedule.update_in_flight",
        state="is false",
        hint="set rl.schedule.update_in_flight: true, or remove it",
        values=(True,),
    ),
)


class SyncConfig(Config):
    """Transfer of new weights to the generator."""

    transport: Literal[
        "in_process", "shared_memory", "file", "dcp", "object_store", "connection"
    ] = performance("in_process")
    """Transport of the weights.

    in_process: copies; shared_memory: memory that other processes can open; file: safetensors, dcp:
    a distributed checkpoint, both in a folder of the run directory; object_store: that of Ray, for
    rl.fleet.carrier ray; connection: that to each generator, for rl.fleet.carrier http."""
    keep_versions: PositiveInt = performance(2)
    """Versions of the weights that stay available."""
    kv_on_update: Literal["reset", "keep"] = numerics("reset", read_when=IN_FLIGHT)
    """Keys and values of earlier tokens after an update within a completion.

    reset: they are computed again with the new weights; keep: the old ones stay, which is faster,
    and the tokens that follow are neither of the old weights nor of the new."""
    max_logprob_diff: OrAuto[PositiveFloat] | None = bookkeeping("auto", examples=[1e-3])
    """Largest difference of the log-probabilities of policy and generator for any token.

    The run stops before an update with a larger difference. Null: the difference is only logged. It
    applies to completions of the weights that learn from them. `auto`: 1e-4 if storage and compute
    are float32, 1e-2 with products in low precision; 0.25 in bfloat16; 0.5 with a converter whose
    rounding depends on the batch, or that vLLM does not have; null with target_offpolicy and static
    completions."""
    max_logprob_diff_mean: OrAuto[PositiveFloat] | None = bookkeeping("auto", examples=[1e-4])
    """Largest mean of these differences over the tokens of a step. `auto`: 1e-5, 0.02 or 0.05."""


class RecorderConfig(Config):
    """Completions kept in rollouts.jsonl."""

    keep_extremes: NonNegativeInt = bookkeeping(1, resume=True)
    """Number of best and of worst completions kept of each group. Set to 0 to write nothing."""
    tokens: bool = bookkeeping(False, resume=True)
    """Whether to write token ids too."""
    logprobs: bool = bookkeeping(False, resume=True)
    """Whether to write the generator's log-probabilities too."""


WITH_HELD_OUT_PROMPTS = ReadWhen(
    rule="rl-validation-needs-prompts",
    switch="rl.validation.dataset",
    state="is null",
    hint="set rl.validation.dataset to held-out prompts, or remove it",
    not_values=(None,),
)


class RlValidationConfig(Config):
    """Rewards of held-out prompts before, during and after training.

    Each prompt gets one completion. Validation runs before the first step and after the last.
    """

    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """Held-out prompts. `auto`: held-out split of a synthetic task, else null (no validation)."""
    samples: PositiveInt = bookkeeping(
        64, unit="prompts", resume=True, read_when=WITH_HELD_OUT_PROMPTS
    )
    """Number of prompts, from the first on."""
    freq: PositiveInt | None = bookkeeping(
        None, unit="steps", resume=True, examples=[50], read_when=WITH_HELD_OUT_PROMPTS
    )
    """Steps between validations. Null: only before the first and after the last step."""
    temperature: Annotated[float, Interval(ge=0)] = bookkeeping(
        0.0, resume=True, read_when=WITH_HELD_OUT_PROMPTS
    )
    """Temperature of these completions, as in rl.sampling."""


class RlConfig(Config):
    """Reinforcement learning of a policy. The prompts are training.dataset."""

    algorithm: AlgorithmConfig = component(AlgorithmConfig)
    environment: EnvironmentConfig = component(EnvironmentConfig)
    rewards: tuple[RewardConfig, ...] = component(())
    """Rewards of a completion, combined as a weighted mean."""
    rollout: RolloutConfig = section(RolloutConfig)
    schedule: AsyncConfig = section(AsyncConfig)
    generator: GeneratorConfig = component(GeneratorConfig)
    fleet: FleetConfig = section(FleetConfig)
    sampling: SamplingConfig = section(SamplingConfig)
    sync: SyncConfig = section(SyncConfig)
    recorder: RecorderConfig = section(RecorderConfig)
    validation: RlValidationConfig = section(RlValidationConfig)
    reference: Literal["frozen_copy", "adapter_off", "teacher"] | None = numerics(None)
    """Reference model that the policy is compared with.

    frozen_copy: a second model with the initial weights of the run; adapter_off: the policy without
    its adapters, which takes no memory; teacher: another model; null: no reference."""
    teacher: Text | None = numerics(None, examples=["runs/teacher"], read_when=IS_TEACHER)
    """Run directory, checkpoint or Hugging Face folder of the reference teacher, with the policy's
    vocabulary and tokenizer. Of a run it is the latest checkpoint."""
    batch_invariant: bool = numerics(False)
    """Whether log-probabilities of generator and trainer must be bitwise equal.

    They are then equal for any batching. Each completion has a sequence of its own and is
    recomputed for each of its tokens."""
