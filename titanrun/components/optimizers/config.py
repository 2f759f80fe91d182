"""The optimizer slot and its choices."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Interval, MinLen
from pydantic import model_validator

from titanrun.components.optimizers.param_group_config import find_param_group_problems
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics, performance
from titanrun.config.problems import Problem
from titanrun.config.types import NonNegativeFloat, PositiveFloat, PositiveInt

Beta = Annotated[float, Interval(ge=0, lt=1)]
Kernel = Literal["fused", "foreach", "for-loop"]
BFLOAT16_BYTES = 2
SCALE_BYTES = 4


class OptimizerConfig(ComponentConfig):
    """Computation of weight updates from gradients."""

    slot: ClassVar = "optimizer"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a torch.optim.Optimizer"
    built_attributes: ClassVar = ("param_groups", "step", "state_dict")
    default_name: ClassVar = "adamw"

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of optimizer state per weight stored in `storage_bytes`.

        `is_in_layer` tells whether the weight belongs to a layer.
        """
        return 0.0

    def compute_temporary_bytes(self, storage_bytes: int) -> float:
        """Return the bytes per weight, stored in `storage_bytes`, that only an update needs.

        Optimizers that update one weight after the other need next to nothing.
        """
        return 0.0

    def find_param_group_problems(self, names: Sequence[str]) -> list[Problem]:
        """Return problems of name patterns in this config, given the names of all parameters."""
        return []


class ParamGroup(Config):
    """Weights with separate settings."""

    match: Annotated[tuple[str, ...], MinLen(1)] = numerics(examples=[["layers.*.moe.router.*"]])
    """Patterns of parameter names, with `*` for any text. Only one group may match a parameter."""
    lr: PositiveFloat | None = numerics(None, examples=[1e-4])
    """Peak learning rate of the group. If null, the optimizer's."""
    weight_decay: NonNegativeFloat | None = numerics(None, examples=[0.0])
    """Weight decay of the group. If null, the optimizer's."""


class StandardOptimizerConfig(OptimizerConfig):
    """Common settings of all shipped optimizers: learning rate, decay and parameter groups."""

    lr: PositiveFloat = numerics(8e-4)
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = numerics(0.1)
    """Decoupled weight decay of all parameters, unless no_decay or param_groups disable it."""
    no_decay: tuple[Literal["norms", "biases", "embeddings"], ...] = numerics(
        (), examples=[["norms", "biases"]]
    )
    """Kinds of parameters without decay."""
    param_groups: tuple[ParamGroup, ...] = numerics(
        (), examples=[[{"match": ["output.*"], "lr": 1e-4}]]
    )
    """Parameters with separate settings, by name. Parameters that no group matches use the
    optimizer's."""
    lora_plus_ratio: PositiveFloat = numerics(1.0, examples=[16.0])
    """Learning rate of the matrices B of adapters, in multiples of that of A (LoRA+,
    https://arxiv.org/abs/2402.12354)."""

    def find_param_group_problems(self, names: Sequence[str]) -> list[Problem]:
        """Return problems of groups that match the same parameter, and of unmatched patterns."""
        return find_param_group_problems(self.param_groups, names)


class AdamConfig(StandardOptimizerConfig):
    """Adam (https://arxiv.org/abs/1412.6980). The decay is added to the gradient."""

    name: Literal["adam"] = numerics("adam")
    builds: ClassVar = "titanrun.components.optimizers.adamw:build_adam"
    weight_decay: NonNegativeFloat = numerics(0.0, examples=[0.1])
    """L2 penalty, added to the gradients of all parameters, unless no_decay or param_groups disable
    it."""
    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Term added to the root of the second moment."""
    implementation: Kernel = performance("fused")
    """Kernel of torch for the update. Kernels differ by rounding."""

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of two means in the dtype of the weight."""
        return 2 * storage_bytes

    def compute_temporary_bytes(self, storage_bytes: int) -> float:
        """Return the bytes of the roots of all second moments, which foreach takes together."""
        return storage_bytes if self.implementation == "foreach" else 0.0


class AdamWConfig(StandardOptimizerConfig):
    """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

    name: Literal["adamw"] = numerics("adamw")
    builds: ClassVar = "titanrun.components.optimizers.adamw:build_adamw"
    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Term added to the root of the second moment."""
    implementation: Kernel = performance("fused")
    """Kernel of torch for the update. Kernels differ by rounding."""
    state_dtype: Literal["weights", "bfloat16"] = numerics("weights")
    """Dtype of both running means: that of the weights, or bfloat16, at half the memory of fp32
    weights."""
    early_step_in_backward: bool = performance(False)
    """Whether to update each parameter as soon as its gradient is complete, to free the gradient.
    Excludes gradient clipping."""

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of two means."""
        return 2 * (storage_bytes if self.state_dtype == "weights" else BFLOAT16_BYTES)

    def compute_temporary_bytes(self, storage_bytes: int) -> float:
        """Return the bytes of the roots of all second moments, which foreach takes together."""
        return (
            storage_bytes
            if self.implementation == "foreach" and self.state_dtype == "weights"
            else 0.0
        )


class LowBitConfig(StandardOptimizerConfig):
    """AdamW with 8-bit running means.

    Each number is a code, and neighbors in a row share a scale in fp32.
    """

    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Term added to the root of the second moment."""
    block_size: Literal[64, 128, 256, 512, 1024, 2048] = numerics(256)
    """Maximum number of values that share a scale. A row has at least 8 blocks. Weights whose rows
    are not divisible by 64 have states in fp32."""

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of two codes and their shares of two scales, in whole blocks."""
        return 2 * (1 + SCALE_BYTES / self.block_size)


class AdamW8bitConfig(LowBitConfig):
    """AdamW with 8-bit running means, by a map that is finer near zero.

    See https://arxiv.org/abs/2110.02861. The formats are torchao's.
    """

    name: Literal["adamw_8bit"] = numerics("adamw_8bit")
    builds: ClassVar = "titanrun.components.optimizers.adamw_8bit:build_adamw_8bit"


class AdamWFp8Config(LowBitConfig):
    """AdamW with running means in float8 (e4m3, torchao's format).

    Coarser than adamw_8bit, without a lookup table.
    """

    name: Literal["adamw_fp8"] = numerics("adamw_fp8")
    builds: ClassVar = "titanrun.components.optimizers.adamw_8bit:build_adamw_fp8"


class SgdConfig(StandardOptimizerConfig):
    """Stochastic gradient descent with optional momentum.

    See https://proceedings.mlr.press/v28/sutskever13.html.
    """

    name: Literal["sgd"] = numerics("sgd")
    builds: ClassVar = "titanrun.components.optimizers.sgd:build_sgd"
    weight_decay: NonNegativeFloat = numerics(0.0, examples=[0.1])
    """L2 penalty, added to the gradients of all parameters, unless no_decay or param_groups disable
    it."""
    momentum: Beta = numerics(0.0, examples=[0.9])
    """Decay of the running sum of gradients. Set to 0 to disable."""
    dampening: Beta = numerics(0.0)
    """Share of the gradient that does not enter the running sum."""
    nesterov: bool = numerics(False, examples=[False])
    """Whether the update looks one step ahead along the running sum."""

    @model_validator(mode="after")
    def check_nesterov_momentum(self) -> Self:
        """Check that Nesterov momentum is nonzero and not dampened."""
        if self.nesterov and self.momentum == 0:
            raise conflict_error(
                "nesterov needs a momentum, but momentum is 0",
                "nesterov",
                "momentum",
                hint="set momentum: 0.9",
            )
        if self.nesterov and self.dampening:
            raise conflict_error(
                "nesterov is defined for a momentum without dampening",
                "dampening",
                "nesterov",
                hint="remove dampening",
            )
        return self

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of the running sum, if there is one."""
        return storage_bytes if self.momentum else 0.0


class MuonConfig(StandardOptimizerConfig):
    """Muon (https://kellerjordan.github.io/posts/muon/).

    Matrices are updated along their orthogonalized momentum, other parameters as with AdamW.
    """

    name: Literal["muon"] = numerics("muon")
    builds: ClassVar = "titanrun.components.optimizers.muon:build_muon"
    momentum: Beta = numerics(0.95)
    """Decay of a matrix's running mean of gradients."""
    nesterov: bool = numerics(True)
    """Whether a matrix's update looks one step ahead along its momentum."""
    ns_steps: PositiveInt = numerics(5, unit="steps")
    """Newton-Schulz iterations of the orthogonalization."""
    ns_dtype: Literal["bfloat16", "float32", "float64"] = numerics("bfloat16")
    """Dtype of the orthogonalization. bfloat16 is slow on a CPU."""
    adjust_lr: Literal["match_rms_adamw", "original"] = numerics("match_rms_adamw")
    """Scale of a matrix's update by its size: 0.2 sqrt(larger side), so that AdamW's learning rates
    fit, or sqrt(max(1, rows / columns))."""
    adamw_match: tuple[str, ...] = numerics(("tok_embeddings.*", "output.*"))
    """Patterns of names of matrices that AdamW updates, as all parameters that are not matrices."""
    beta1: Beta = numerics(0.9)
    """AdamW's decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """AdamW's decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """AdamW's term added to the root of the second moment."""

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of one mean for layer matrices, two for embedding and output head."""
        return storage_bytes if is_in_layer else 2 * storage_bytes


class ScheduleFreeAdamWConfig(StandardOptimizerConfig):
    """Schedule-free AdamW (https://arxiv.org/abs/2405.15682).

    It averages the weights instead of lowering the learning rate.
    """

    name: Literal["schedule_free_adamw"] = numerics("schedule_free_adamw")
    builds: ClassVar = "titanrun.components.optimizers.schedule_free:build_schedule_free"
    beta1: Beta = numerics(0.9)
    """Interpolation of the point of gradients, from the iterates (0) to their average (1)."""
    beta2: Beta = numerics(0.999)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Term added to the root of the second moment."""
    weight_lr_power: NonNegativeFloat = numerics(2.0)
    """Power of the learning rate in the weight of a step in the average."""

    def compute_state_bytes(self, storage_bytes: int, *, is_in_layer: bool) -> float:
        """Return the bytes of the iterates, their average, and the mean of squared gradients."""
        return 3 * storage_bytes
