"""The optimizer slot and its choices."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Interval, MinLen
from pydantic import model_validator

from titanrun.components.optimizers.claims import claim_problems
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict
from titanrun.config.fields import numerics, performance
from titanrun.config.problems import Problem
from titanrun.config.types import NonNegativeFloat, PositiveFloat, PositiveInt

Beta = Annotated[float, Interval(ge=0, lt=1)]
Kernel = Literal["fused", "foreach", "for-loop"]
BFLOAT16_BYTES = 2
SCALE_BYTES = 4


class OptimizerConfig(ComponentConfig):
    """What turns gradients into weight updates."""

    slot: ClassVar = "optimizer"
    is_slot: ClassVar = True
    default_name: ClassVar = "adamw"

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """Bytes of optimizer state for one weight that is stored in `storage_bytes`, in a layer or outside of them."""
        return 0.0

    def claim_problems(self, names: Sequence[str]) -> list[Problem]:
        """What is wrong with the patterns of names in this config, given the names of all parameters."""
        return []


class ParamGroup(Config):
    """Weights with settings of their own."""

    match: Annotated[tuple[str, ...], MinLen(1)] = numerics(examples=[["layers.*.moe.router.*"]])
    """Patterns of parameter names, with `*` for any text; a parameter may be matched by one group only."""
    lr: PositiveFloat | None = numerics(None, examples=[1e-4])
    """Peak learning rate of the group; null: the optimizer's."""
    weight_decay: NonNegativeFloat | None = numerics(None, examples=[0.0])
    """Decay of the group; null: the optimizer's."""


class GroupedConfig(OptimizerConfig):
    """What every shipped optimizer has: a learning rate, a decay, and parameters with settings of their own."""

    lr: PositiveFloat = numerics(8e-4)
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = numerics(0.1)
    """Decoupled decay, on every parameter that no_decay and param_groups leave it on."""
    no_decay: tuple[Literal["norms", "biases", "embeddings"], ...] = numerics(
        (), examples=[["norms", "biases"]]
    )
    """Kinds of parameters that do not decay."""
    param_groups: tuple[ParamGroup, ...] = numerics(
        (), examples=[[{"match": ["output.*"], "lr": 1e-4}]]
    )
    """Parameters with settings of their own, by name. What no group matches has the optimizer's."""

    def claim_problems(self, names: Sequence[str]) -> list[Problem]:
        """Groups that claim one parameter together, and patterns that claim none."""
        return claim_problems(self.param_groups, names)


class AdamConfig(GroupedConfig):
    """Adam (https://arxiv.org/abs/1412.6980); the decay is added to the gradient."""

    name: Literal["adam"] = numerics("adam")
    builds: ClassVar = "titanrun.components.optimizers.adamw:build_adam"
    weight_decay: NonNegativeFloat = numerics(0.0, examples=[0.1])
    """L2 penalty, added to the gradient of every parameter that no_decay and param_groups leave it on."""
    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Added to the root of the second moment."""
    implementation: Kernel = performance("fused")
    """Which of torch's kernels steps; they differ by rounding."""

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """Two means of the weight's type."""
        return 2 * storage_bytes


class AdamWConfig(GroupedConfig):
    """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

    name: Literal["adamw"] = numerics("adamw")
    builds: ClassVar = "titanrun.components.optimizers.adamw:build_adamw"
    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Added to the root of the second moment."""
    implementation: Kernel = performance("fused")
    """Which of torch's kernels steps; they differ by rounding."""
    state_dtype: Literal["weights", "bfloat16"] = numerics("weights")
    """Type that both running means are kept in: the weights' own, or bfloat16, at half the memory of fp32 weights."""
    early_step_in_backward: bool = performance(False)
    """Whether each parameter is updated as soon as its gradient is there, to free the gradient; rules out clipping."""

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """Two means."""
        return 2 * (storage_bytes if self.state_dtype == "weights" else BFLOAT16_BYTES)


class FewBitsConfig(GroupedConfig):
    """AdamW with running means of 8 bits: each number is a code, and neighbours in a row share a scale in fp32."""

    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Added to the root of the second moment."""
    block_size: Literal[64, 128, 256, 512, 1024, 2048] = numerics(256)
    """Most numbers that share a scale. A row has 8 blocks or more; weights whose rows 64 does not divide have states in fp32."""

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """Two codes and their shares of two scales, where rows are long enough for whole blocks."""
        return 2 * (1 + SCALE_BYTES / self.block_size)


class AdamW8bitConfig(FewBitsConfig):
    """AdamW with running means in 8 bits, by a map that is finer near zero (https://arxiv.org/abs/2110.02861; torchao's formats)."""

    name: Literal["adamw_8bit"] = numerics("adamw_8bit")
    builds: ClassVar = "titanrun.components.optimizers.few_bits:build_8bit"


class AdamWFp8Config(FewBitsConfig):
    """AdamW with running means in float8 (e4m3, torchao's format): coarser than adamw_8bit, without a table to look values up in."""

    name: Literal["adamw_fp8"] = numerics("adamw_fp8")
    builds: ClassVar = "titanrun.components.optimizers.few_bits:build_fp8"


class SgdConfig(GroupedConfig):
    """Stochastic gradient descent, with momentum (https://proceedings.mlr.press/v28/sutskever13.html) if asked for."""

    name: Literal["sgd"] = numerics("sgd")
    builds: ClassVar = "titanrun.components.optimizers.sgd:build_sgd"
    weight_decay: NonNegativeFloat = numerics(0.0, examples=[0.1])
    """L2 penalty, added to the gradient of every parameter that no_decay and param_groups leave it on."""
    momentum: Beta = numerics(0.0, examples=[0.9])
    """Decay of the running sum of gradients; 0 keeps none."""
    dampening: Beta = numerics(0.0)
    """Share of the gradient that does not enter the running sum."""
    nesterov: bool = numerics(False, examples=[False])
    """Whether the update looks one step ahead along the running sum."""

    @model_validator(mode="after")
    def looks_ahead_along_a_momentum(self) -> Self:
        """Nesterov's step needs a momentum, and one that is not dampened."""
        if self.nesterov and self.momentum == 0:
            raise conflict(
                "nesterov looks ahead along the momentum, and momentum is 0",
                "nesterov",
                "momentum",
                help="set momentum: 0.9",
            )
        if self.nesterov and self.dampening:
            raise conflict(
                "nesterov is defined for a momentum without dampening",
                "dampening",
                "nesterov",
                help="remove dampening",
            )
        return self

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """The running sum, where there is one."""
        return storage_bytes if self.momentum else 0.0


class MuonConfig(GroupedConfig):
    """Muon (https://kellerjordan.github.io/posts/muon/): matrices step along their orthogonalised momentum, the rest as with AdamW."""

    name: Literal["muon"] = numerics("muon")
    builds: ClassVar = "titanrun.components.optimizers.muon:build_muon"
    momentum: Beta = numerics(0.95)
    """Decay of a matrix's running mean of gradients."""
    nesterov: bool = numerics(True)
    """Whether a matrix's update looks one step ahead along its momentum."""
    ns_steps: PositiveInt = numerics(5, unit="steps")
    """Newton-Schulz steps that orthogonalise."""
    ns_dtype: Literal["bfloat16", "float32", "float64"] = numerics("bfloat16")
    """Type that they are computed in; bfloat16 is slow on a CPU."""
    adjust_lr: Literal["match_rms_adamw", "original"] = numerics("match_rms_adamw")
    """How a matrix's size scales its update: 0.2 sqrt(larger side), so that AdamW's rates fit, or sqrt(max(1, rows / columns))."""
    adamw_match: tuple[str, ...] = numerics(("tok_embeddings.*", "output.*"))
    """Patterns of names of matrices that AdamW steps, as it does all that is no matrix."""
    beta1: Beta = numerics(0.9)
    """AdamW's decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """AdamW's decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """AdamW's term beside the root of the second moment."""

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """One mean for the matrices of layers, two for embedding and output head."""
        return storage_bytes if in_layer else 2 * storage_bytes


class ScheduleFreeAdamWConfig(GroupedConfig):
    """Schedule-free AdamW (https://arxiv.org/abs/2405.15682): averages the weights instead of lowering the learning rate."""

    name: Literal["schedule_free_adamw"] = numerics("schedule_free_adamw")
    builds: ClassVar = "titanrun.components.optimizers.schedule_free:build_schedule_free"
    beta1: Beta = numerics(0.9)
    """Where gradients are taken: this far from the steps towards their average."""
    beta2: Beta = numerics(0.999)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Added to the root of the second moment."""
    weight_lr_power: NonNegativeFloat = numerics(2.0)
    """Power of the learning rate by which a step weighs in the average."""

    def state_bytes(self, storage_bytes: int, *, in_layer: bool) -> float:
        """The steps, their average, and the mean of squared gradients."""
        return 3 * storage_bytes
