"""The converter slot and its choices.

Converters rewrite a model on the meta device before it is parallelized.
"""

from fnmatch import fnmatchcase
from math import sqrt
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from annotated_types import Interval
from pydantic import model_validator

from titanrun.components.converters.quantization_config import (
    DEFAULT_GROUP_SIZE,
    LM_HEAD,
    GroupSize,
    QatScheme,
)
from titanrun.components.converters.spec.device_requirement import DeviceRequirement
from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics, performance
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt, Text

AUTO_FILTER = "auto_filter_small_kn"
NumberFormat: TypeAlias = Literal["float8", "mxfp8", "nvfp4"]
Float8Scales: TypeAlias = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]


class ConverterConfig(ComponentConfig):
    """Rewriting of modules of a model, in the order of the list."""

    slot: ClassVar = "converters"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a ConversionReport"
    built_attributes: ClassVar = ("converted", "skipped")
    name: str = numerics()
    number_format: ClassVar[NumberFormat | None] = None
    """Number format of matrix products. Converters of different formats cannot be combined."""
    is_for_experts: ClassVar = False
    """Whether it rewrites only the experts of a mixture."""
    matches_expert_weights: ClassVar = False
    """Whether its patterns also match single matrices of stacked experts."""
    changes_parameters: ClassVar = True
    """Whether it changes the number, shape or dtype of parameters, which a plan counts."""
    alignment: ClassVar[int] = 1
    """Divisor of the tokens of a forward pass and of the widths of a module."""

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement, None if any device will do."""
        return None

    def build_device_problem(self, device: str, index: int) -> Problem:
        """Build the problem of converter `index` of the list on a device without the feature."""
        assert self.device_requirement is not None
        can_emulate = "emulate" in type(self).model_fields
        action = (
            "set emulate: true to try it on any device, or train on" if can_emulate else "train on"
        )
        message = (
            f"{self.name} needs {self.device_requirement.feature}, "
            f"which this device ({device}) does not have"
        )
        return Problem(
            "usage",
            message,
            ("converters", index),
            hint=f"{action} {self.device_requirement.description}",
        )

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Texts to find in the names of modules, by field: one that matches no name is an error."""
        return {}

    def matches_pattern(self, pattern: str, name: str) -> bool:
        """Return whether the pattern matches the module `name`."""
        return pattern in name


class Float8LinearConfig(ConverterConfig):
    """Linear modules whose three products are computed in float8 with dynamic scales.

    Uses torchao (https://arxiv.org/abs/2209.05433).
    """

    name: Literal["float8_linear"] = numerics("float8_linear")
    builds: ClassVar = "titanrun.components.converters.float8_linear:convert"
    changes_parameters: ClassVar = False
    number_format: ClassVar = "float8"
    alignment: ClassVar = 16
    recipe_name: OrAuto[Float8Scales] = numerics("auto")
    """Granularity of scales: one per tensor (fastest), one per row, or per row with the weights'
    gradients in high precision (most accurate). `auto`: rowwise in RL, else tensorwise."""
    filter_fqns: tuple[Text, ...] = numerics((), examples=[["output", "router.gate"]])
    """Texts in names of linear modules that are not converted."""
    auto_filter_small_kn: bool = numerics(False)
    """Whether to also skip modules too small to gain from float8 on an H100."""
    enable_fsdp_float8_all_gather: bool = performance(False)
    """Whether FSDP all-gathers the weights in float8, a quarter of fp32's bytes. tensorwise
    only."""
    precompute_float8_dynamic_scale_for_fsdp: bool = performance(False, examples=[False])
    """Whether to compute the scales of all weights together after each optimizer step, in one
    reduction."""
    emulate: bool = performance(False)
    """Whether to compute products in fp32 from numbers rounded to float8: slow, on any device."""

    @property
    def scales(self) -> Float8Scales:
        """Granularity of scales: `auto` is tensorwise unless resolved otherwise."""
        return "tensorwise" if self.recipe_name == AUTO else self.recipe_name

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement, None with emulate."""
        needed = DeviceRequirement("float8 products", (8, 9), ("gfx942", "gfx950"))
        return None if self.emulate else needed

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in filter_fqns."""
        return {"filter_fqns": self.filter_fqns}

    @model_validator(mode="after")
    def check_option_conflicts(self) -> Self:
        """Check that the options do not conflict."""
        if AUTO_FILTER in self.filter_fqns:
            message = f"'{AUTO_FILTER}' is not part of a module's name, but a separate setting here"
            raise conflict_error(
                message, "filter_fqns", hint=f"remove it from the list and set {AUTO_FILTER}: true"
            )
        if self.auto_filter_small_kn and self.scales == "rowwise_with_gw_hp":
            message = f"torchao has no measurements of small modules with {self.recipe_name}"
            hint = (
                "set recipe_name: rowwise, or auto_filter_small_kn: false with the small modules "
                "in filter_fqns"
            )
            raise conflict_error(message, AUTO_FILTER, "recipe_name", hint=hint)
        if self.enable_fsdp_float8_all_gather and self.scales != "tensorwise":
            message = (
                "a float8 all-gather needs one scale for a whole weight, "
                f"but {self.recipe_name} has one per row"
            )
            hint = "set recipe_name: tensorwise, or enable_fsdp_float8_all_gather: false"
            raise conflict_error(message, "enable_fsdp_float8_all_gather", "recipe_name", hint=hint)
        if self.precompute_float8_dynamic_scale_for_fsdp and not self.enable_fsdp_float8_all_gather:
            message = "scales are precomputed for a float8 all-gather, which is off"
            names = ("precompute_float8_dynamic_scale_for_fsdp", "enable_fsdp_float8_all_gather")
            raise conflict_error(
                message, *names, hint="set enable_fsdp_float8_all_gather: true, or remove it"
            )
        return self


class Float8GroupedMmConfig(ConverterConfig):
    """Routed experts whose grouped products are computed in float8 with rowwise scales.

    Uses a torchao prototype.
    """

    name: Literal["float8_grouped_mm"] = numerics("float8_grouped_mm")
    builds: ClassVar = "titanrun.components.converters.grouped_mm:convert_to_float8"
    changes_parameters: ClassVar = False
    number_format: ClassVar = "float8"
    is_for_experts: ClassVar = True
    alignment: ClassVar = 16
    fqns: tuple[Text, ...] = numerics((), examples=[["experts"]])
    """Texts in names of experts to convert. If empty, all."""

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement."""
        return DeviceRequirement("grouped products in float8", (9, 0), ("gfx942", "gfx950"))

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in fqns."""
        return {"fqns": self.fqns}


class Mxfp8LinearConfig(ConverterConfig):
    """Linear modules in MXFP8: float8 with a scale for each 32 numbers.

    The format is of OCP Microscaling Formats 1.0. Uses a torchao prototype.
    """

    name: Literal["mxfp8_linear"] = numerics("mxfp8_linear")
    builds: ClassVar = "titanrun.components.converters.mxfp8_linear:convert"
    changes_parameters: ClassVar = False
    number_format: ClassVar = "mxfp8"
    alignment: ClassVar = 32
    recipe_name: Literal["mxfp8_cublas", "mxfp8_cublas_rceil"] = numerics("mxfp8_cublas")
    """Rounding of a block's scale to a power of two: down, or up so that nothing overflows
    (rceil)."""
    mxfp8_dim1_cast_kernel_choice: Literal["triton", "cuda", "torch"] = performance("triton")
    """Kernel that casts along columns."""
    filter_fqns: tuple[Text, ...] = numerics(("output",))
    """Texts in names of linear modules that are not converted."""
    emulate: bool = performance(False)
    """Whether to compute products in high precision from numbers rounded to MXFP8: slow, on any
    device."""

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement, None with emulate."""
        return None if self.emulate else DeviceRequirement("MXFP8 products", (10, 0), ("gfx950",))

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in filter_fqns."""
        return {"filter_fqns": self.filter_fqns}


class Mxfp8GroupedMmConfig(ConverterConfig):
    """Routed experts whose grouped products are computed in MXFP8 (torchao prototype)."""

    name: Literal["mxfp8_grouped_mm"] = numerics("mxfp8_grouped_mm")
    builds: ClassVar = "titanrun.components.converters.grouped_mm:convert_to_mxfp8"
    changes_parameters: ClassVar = False
    number_format: ClassVar = "mxfp8"
    is_for_experts: ClassVar = True
    alignment: ClassVar = 32
    recipe_name: Literal["mxfp8", "mxfp8_wgrad_with_hp"] = numerics("mxfp8")
    """Whether the weights' gradients are also computed in MXFP8, or in high precision."""
    fqns: tuple[Text, ...] = numerics((), examples=[["experts"]])
    """Texts in names of experts to convert. If empty, all."""
    emulate: bool = performance(False)
    """Whether to compute products in bf16 from numbers rounded to MXFP8: slow, on any device."""

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement, None with emulate."""
        return None if self.emulate else DeviceRequirement("grouped products in MXFP8", (10, 0))

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in fqns."""
        return {"fqns": self.fqns}


class Nvfp4LinearConfig(ConverterConfig):
    """Linear modules in NVFP4: 4-bit numbers with a scale for each 16.

    See https://arxiv.org/abs/2509.25149. Uses a torchao prototype.
    """

    name: Literal["nvfp4_linear"] = numerics("nvfp4_linear")
    builds: ClassVar = "titanrun.components.converters.nvfp4_linear:convert"
    changes_parameters: ClassVar = False
    number_format: ClassVar = "nvfp4"
    alignment: ClassVar = 128
    fqns: tuple[Text, ...] = numerics((), examples=[["feed_forward"]])
    """Texts in names of linear modules to convert. If empty, all."""

    @property
    def device_requirement(self) -> DeviceRequirement | None:
        """Device requirement."""
        return DeviceRequirement("NVFP4 products", (10, 0))

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in fqns."""
        return {"fqns": self.fqns}


class Fp32LmHeadConfig(ConverterConfig):
    """Output head and logits in fp32, regardless of the compute dtype of the model."""

    name: Literal["fp32_lm_head"] = numerics("fp32_lm_head")
    builds: ClassVar = "titanrun.components.converters.fp32_lm_head:convert"
    products: Literal["auto", "ieee", "tf32", "bfloat16"] = numerics("auto")
    """Products on accelerators: `ieee` in full fp32, `tf32` and `bfloat16` of operands of 11 and 8
    bits. CPUs compute `tf32` as `ieee`. `auto`: `tf32`, or `ieee` if `device` is cpu."""


class QatConfig(ConverterConfig):
    """Linear modules that round their weights in training as after a later quantization.

    Uses torchao (https://arxiv.org/abs/1712.05877). Gradients pass through the rounding. Weights
    keep their dtype; `checkpoint export --quantize` of the same scheme makes them small.
    """

    name: Literal["qat"] = numerics("qat")
    builds: ClassVar = "titanrun.components.converters.torchao_quantization:convert"
    changes_parameters: ClassVar = False
    scheme: QatScheme = numerics("int8_dynamic_activation_int4_weight")
    """Target quantization, by torchao's names: weights in 4 bits, and inputs of modules in 8 bits
    or unchanged."""
    group_size: GroupSize = numerics(DEFAULT_GROUP_SIZE)
    """Numbers of a row that share a scale."""
    filter_fqns: tuple[Text, ...] = numerics((LM_HEAD,))
    """Texts in names of linear modules that are not converted."""

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in filter_fqns."""
        return {"filter_fqns": self.filter_fqns}


ALL_LINEAR = "all-linear"
"""Word in target_modules for all linear modules but the output head."""


class AdapterConfig(ConverterConfig):
    """Low-rank adapters of linear modules: y = W x + alpha / rank * B A x, with frozen W."""

    matches_expert_weights: ClassVar = True
    rank: PositiveInt = numerics(8)
    """Rank: width between A and B."""
    alpha: PositiveFloat = numerics(16.0)
    """Numerator of the adapter's scale alpha / rank."""
    rank_stabilized: bool = numerics(False)
    """Whether the scale is alpha / sqrt(rank) instead, with which adapters of high ranks learn as
    fast as others (rsLoRA, https://arxiv.org/abs/2312.03732)."""
    magnitude: bool = numerics(False)
    """Whether to also train the norm of each row of W + alpha / rank * B A, apart from its
    direction (DoRA, https://arxiv.org/abs/2402.09353). Each pass computes these norms anew."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = numerics(0.0)
    """Share of the adapter's inputs that are zeroed at each step. W gets all of them."""
    target_modules: tuple[Text, ...] | None = numerics(
        (ALL_LINEAR,), examples=[["wq", "wv"], ["layers.*.attention.*"]]
    )
    """Modules with an adapter: last components of names, or patterns of whole names with * for any
    text. all-linear: all linear modules but the output head, as in PEFT and torchtune. If null, the
    head too. Besides linear modules, patterns match the matrices of stacked experts by their names
    there, or all matrices of a stack by its name."""

    @model_validator(mode="after")
    def check_magnitude_conflicts(self) -> Self:
        """Check that magnitudes and dropout are not combined."""
        if self.magnitude and self.dropout:
            message = "with magnitude an adapter rescales its module, which has no dropout"
            hint = "set dropout: 0, or magnitude: false"
            raise conflict_error(message, "magnitude", "dropout", hint=hint)
        return self

    @property
    def scale(self) -> float:
        """Factor of the adapter's output."""
        return self.alpha / (sqrt(self.rank) if self.rank_stabilized else self.rank)

    @property
    def name_patterns(self) -> dict[str, tuple[str, ...]]:
        """Patterns in target_modules."""
        named = self.target_modules or ()
        return {"target_modules": tuple(name for name in named if name != ALL_LINEAR)}

    def matches_pattern(self, pattern: str, name: str) -> bool:
        """Return whether a pattern matches the whole name or its last component."""
        return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)

    def is_named(self, name: str) -> bool:
        """Return whether a name or pattern in target_modules matches the module `name`."""
        return any(self.matches_pattern(pattern, name) for pattern in self.target_modules or ())

    def is_target(self, name: str) -> bool:
        """Return whether the linear module `name` gets an adapter."""
        if self.target_modules is None or self.is_named(name):
            return True
        return ALL_LINEAR in self.target_modules and name != LM_HEAD


class LoraConfig(AdapterConfig):
    """Low-rank adapters of linear modules: y = W x + alpha / rank * B A x, with frozen W.

    LoRA, https://arxiv.org/abs/2106.09685. A is initialized uniformly within 1 / sqrt(width), B
    with zeros, so that the first step uses the original model.
    """

    name: Literal["lora"] = numerics("lora")
    builds: ClassVar = "titanrun.components.converters.lora:convert"


class QloraConfig(AdapterConfig):
    """Low-rank adapters as in lora, with frozen matrices in 4 or 8 bits.

    QLoRA, https://arxiv.org/abs/2305.14314. All linear modules of the model are quantized but its
    output head, routers, and those whose rows do not consist of whole blocks.
    """

    name: Literal["qlora"] = numerics("qlora")
    builds: ClassVar = "titanrun.components.converters.lora:convert_qlora"
    base: Literal["nf4", "int8"] = numerics("nf4")
    """Format of frozen matrices: 16 values that suit weights (nf4), or 255 equidistant ones
    (int8)."""
    block_size: Literal[32, 64, 128, 256] = numerics(64)
    """Numbers of a row that share a scale in fp32."""
