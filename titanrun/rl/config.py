"""The rl section: what a policy is asked, how it answers, what the answers are worth, and what is learned from them."""

from typing import Annotated, Literal

from annotated_types import Interval

from titanrun.components.data.config import DatasetConfig
from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, performance, section
from titanrun.config.types import Fraction, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt
from titanrun.rl.algorithms.config import AlgorithmConfig
from titanrun.rl.environments.config import EnvironmentConfig
from titanrun.rl.generators.config import GeneratorConfig, SamplingConfig
from titanrun.rl.rewards.config import RewardConfig


class RolloutConfig(Config):
    """How answers are collected."""

    prompts_per_step: PositiveInt = numerics(8, unit="prompts")
    """Prompts of one optimizer step."""
    samples_per_prompt: PositiveInt = numerics(8, unit="answers")
    """Answers to each prompt, which are compared with each other: a group."""
    max_tokens: PositiveInt | None = numerics(None, unit="tokens", examples=[512])
    """Longest conversation, prompt included; null: as long as a row."""
    renderer: Literal["plain", "chat"] = numerics("plain")
    """plain: prompts as they are written; chat: put into words by the tokenizer's chat template."""
    drop_zero_variance: bool = numerics(True)
    """Whether groups whose rewards are all the same, from which nothing can be learned, are left out."""
    stop_after_dropped: PositiveInt = bookkeeping(20, unit="steps")
    """After so many steps in a row of which nothing was left the run ends with an error."""
    truncation_reward: float | None = numerics(None, examples=[0.0])
    """Reward of an answer that was cut off, in the place of all others; null: as any other answer."""
    error_reward: float | None = numerics(None, examples=[-1.0])
    """Reward of a conversation whose environment failed; null: it is dropped, and counted."""


class AsyncConfig(Config):
    """How far generation may run ahead of training."""

    target_offpolicy: NonNegativeInt = numerics(0, unit="steps")
    """Steps that answers may be older than the weights that learn from them; 0: every answer comes from the weights it trains."""
    window: Fraction = numerics(0.3)
    """Share of the waiting groups from which those that are ready are taken first, counted from the oldest; with target_offpolicy."""


class SyncConfig(Config):
    """How new weights reach the generator."""

    transport: Literal["in_process", "shared_memory", "file", "dcp"] = performance("in_process")
    """in_process: copied; shared_memory: through memory that other processes can open; file: safetensors, dcp: a distributed checkpoint,
    both in a folder of the run directory."""
    keep_versions: PositiveInt = performance(2)
    """Versions that stay available."""
    max_logprob_diff: PositiveFloat | None = bookkeeping(None, examples=[1e-3])
    """The run stops before an update where the policy's and the generator's log-probabilities of any token differ by more; null: the
    difference is only logged. For answers of the weights that learn from them."""


class RecorderConfig(Config):
    """What is kept of the answers in rollouts.jsonl."""

    keep_extremes: NonNegativeInt = bookkeeping(1, resume=True)
    """How many of the best and of the worst answers of each group; 0: nothing is written."""
    tokens: bool = bookkeeping(False, resume=True)
    """Whether token ids are written too."""
    logprobs: bool = bookkeeping(False, resume=True)
    """Whether the generator's log-probabilities are written too."""


class RlValidationConfig(Config):
    """Rewards of held-out prompts, one answer each: before the first step, while training, and after the last."""

    dataset: OrAuto[DatasetConfig] | None = component("auto")
    """Held-out prompts; `auto` is the held-out part of a task that titanrun makes up, else null: no validation."""
    samples: PositiveInt = bookkeeping(64, unit="prompts", resume=True)
    """How many of them, from the first on."""
    freq: PositiveInt | None = bookkeeping(None, unit="steps", resume=True, examples=[50])
    """Steps between validations; null: only before the first and after the last."""
    temperature: Annotated[float, Interval(ge=0)] = bookkeeping(0.0, resume=True)
    """Temperature of these answers; 0 takes the likeliest token."""


class RlConfig(Config):
    """Reinforcement learning of a policy: prompts are training.dataset."""

    algorithm: AlgorithmConfig = component(AlgorithmConfig)
    environment: EnvironmentConfig = component(EnvironmentConfig)
    rewards: tuple[RewardConfig, ...] = component(())
    """What an answer is worth: the weighted mean of these."""
    rollout: RolloutConfig = section(RolloutConfig)
    schedule: AsyncConfig = section(AsyncConfig)
    generator: GeneratorConfig = component(GeneratorConfig)
    sampling: SamplingConfig = section(SamplingConfig)
    sync: SyncConfig = section(SyncConfig)
    recorder: RecorderConfig = section(RecorderConfig)
    validation: RlValidationConfig = section(RlValidationConfig)
    reference: Literal["frozen_copy", "adapter_off"] | None = numerics(None)
    """What the policy is held against: frozen_copy, a second model with the weights that training began with; adapter_off, the policy's
    own without its adapters, which takes no memory; null: nothing."""
    batch_invariant: bool = numerics(False)
    """Whether the generator must compute exactly what the trainer computes: log-probabilities equal bit by bit, whatever is batched. Each
    answer has a row of its own then, and is read anew for each of its tokens."""
