"""Sections about how one model is laid out over devices: parallelism, activation checkpointing, compile, comm, debug."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, numerics, performance
from titanrun.config.types import NonNegativeInt, OrAuto, PositiveInt, Text

PARALLEL = "training on more than one process"


class ParallelismConfig(Config):
    """Degrees of parallelism; their product is the number of ranks."""

    data_parallel_replicate_degree: PositiveInt = performance(1, unit="ranks", not_built=PARALLEL)
    """Copies of the model (DDP), or groups of shards (HSDP)."""
    data_parallel_shard_degree: OrAuto[PositiveInt] = performance("auto", unit="ranks", examples=[1])
    """Ranks that share one copy of the weights (FSDP2); `auto`: all that the other degrees leave."""
    tensor_parallel_degree: PositiveInt = performance(1, unit="ranks", not_built="tensor parallelism")
    """Ranks that split each matrix."""
    pipeline_parallel_degree: PositiveInt = performance(1, unit="ranks", not_built="pipeline parallelism")
    """Ranks that split the layers."""
    context_parallel_degree: PositiveInt = performance(1, unit="ranks", not_built="context parallelism")
    """Ranks that split each sequence."""
    expert_parallel_degree: PositiveInt = performance(1, unit="ranks", not_built="expert parallelism")
    """Ranks that split the experts."""
    expert_tensor_parallel_degree: PositiveInt = performance(1, unit="ranks", not_built="expert parallelism")
    """Ranks that split each expert's matrices."""


class ActivationCheckpointConfig(ComponentConfig):
    """Which activations are recomputed in the backward pass instead of kept."""

    slot: ClassVar = "activation_checkpoint"
    is_slot: ClassVar = True
    default_name: ClassVar = "none"


class NoActivationCheckpointConfig(ActivationCheckpointConfig):
    """Every activation is kept."""

    name: Literal["none"] = performance("none")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:keep_all"


class FullActivationCheckpointConfig(ActivationCheckpointConfig):
    """Every layer keeps its input only and is computed again in the backward pass."""

    name: Literal["full"] = performance("full")
    builds: ClassVar = "titanrun.distributed.activation_checkpoint:recompute_all"
    preserve_rng_state: bool = performance(True)
    """Whether random draws of the first pass are repeated in the second."""


class CompileConfig(Config):
    """torch.compile."""

    enable: bool = performance(False, not_built="compile")
    """Whether blocks and loss are compiled."""
    components: tuple[Literal["model", "loss"], ...] = performance(("model", "loss"), not_built="compile")
    """What is compiled."""
    backend: Text = performance("inductor", not_built="compile")
    """Back end of torch.compile."""


class CommConfig(Config):
    """Collective communication."""

    init_timeout_seconds: PositiveInt = bookkeeping(300, unit="seconds", not_built=PARALLEL)
    """How long ranks wait for each other at the start."""
    train_timeout_seconds: PositiveInt = bookkeeping(100, unit="seconds", not_built=PARALLEL)
    """How long a collective may take after the first step."""


class FaultToleranceConfig(Config):
    """Replica groups that survive each other (torchft)."""

    enable: bool = bookkeeping(False, not_built="torchft replica groups")
    """Whether replica groups are used."""


class DebugConfig(Config):
    """Seed and determinism."""

    seed: NonNegativeInt = numerics(0)
    """Seed of weights, data order and every generator."""
    deterministic: bool = numerics(False)
    """Whether only deterministic kernels are used; an operation without one is an error."""
    deterministic_warn_only: bool = numerics(False)
    """Whether such an operation warns instead."""
    moe_force_load_balance: bool = numerics(False, not_built="mixture of experts")
    """Whether tokens are dealt to experts in turn instead of by the router."""
