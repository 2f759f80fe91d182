"""The converter slot and its choices: what rewrites a model on the meta device before it is parallelised."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from annotated_types import Interval
from pydantic import model_validator

from titanrun.components.converters.schemes import GROUP_SIZE, HEAD, GroupSize, Trained
from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict
from titanrun.config.fields import numerics, performance
from titanrun.config.problems import Problem
from titanrun.config.types import PositiveFloat, PositiveInt, Text

AUTO_FILTER = "auto_filter_small_kn"
NumberFormat: TypeAlias = Literal["float8", "mxfp8", "nvfp4"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a device must have: the oldest NVIDIA generation, and the names that ROCm gives the AMD ones; empty: none of them."""

    what: str
    cuda: tuple[int, int]
    rocm: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`an NVIDIA GPU of compute capability 8.9 or later, or an AMD gfx942`."""
        nvidia = f"an NVIDIA GPU of compute capability {self.cuda[0]}.{self.cuda[1]} or later"
        return f"{nvidia}, or an AMD {' or '.join(self.rocm)}" if self.rocm else nvidia


class ConverterConfig(ComponentConfig):
    """Rewrites modules of a model, in the order of the list."""

    slot: ClassVar = "converters"
    is_slot: ClassVar = True
    name: str = numerics()
    format: ClassVar[NumberFormat | None] = None
    """The number format that matrix products are made in; converters of different formats do not go together."""
    of_experts: ClassVar = False
    """Whether it rewrites the experts of a mixture, and nothing else."""
    of_stacks: ClassVar = False
    """Whether its patterns also mean single matrices of stacked experts."""
    block: ClassVar[int] = 1
    """Tokens of a forward pass, and widths of a module, come in multiples of this."""

    @property
    def needs(self) -> Kernels | None:
        """What the device must have for it; None where any device will do."""
        return None

    def missing(self, device: str, index: int) -> Problem:
        """What is wrong with it, the converter `index` of the list, on a device that lacks what it needs."""
        assert self.needs is not None
        can_emulate = "emulate" in type(self).model_fields
        help = (
            "set emulate: true to try it on any device, or train on" if can_emulate else "train on"
        )
        message = f"{self.name} needs {self.needs.what}, which this device ({device}) does not have"
        return Problem("usage", message, ("converters", index), help=f"{help} {self.needs.words}")

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Texts that the names of modules are searched for, by field: one that is in no name is a mistake."""
        return {}

    def fits(self, pattern: str, name: str) -> bool:
        """Whether one of the patterns means the module `name`."""
        return pattern in name


class Float8LinearConfig(ConverterConfig):
    """Linear modules whose three products are made in float8 with scales of the moment (torchao, https://arxiv.org/abs/2209.05433)."""

    name: Literal["float8_linear"] = numerics("float8_linear")
    builds: ClassVar = "titanrun.components.converters.float8_linear:convert"
    format: ClassVar = "float8"
    block: ClassVar = 16
    recipe_name: Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"] = numerics("tensorwise")
    """One scale for a tensor (fastest), one for each row, or rows with the weights' gradients in high precision (most exact)."""
    filter_fqns: tuple[Text, ...] = numerics((), examples=[["output", "router.gate"]])
    """Linear modules whose names have one of these texts in them stay as they are."""
    auto_filter_small_kn: bool = numerics(False)
    """Whether modules too small to gain from float8 on an H100 stay as they are too."""
    enable_fsdp_float8_all_gather: bool = performance(False)
    """Whether FSDP gathers the weights in float8, a quarter of fp32's bytes; tensorwise only."""
    precompute_float8_dynamic_scale_for_fsdp: bool = performance(False, examples=[False])
    """Whether the scales of all weights are computed together after each optimizer step, in one reduction."""
    emulate: bool = performance(False)
    """Whether products are made in fp32 from numbers rounded to float8: slow, on any device."""

    @property
    def needs(self) -> Kernels | None:
        return None if self.emulate else Kernels("float8 products", (8, 9), ("gfx942", "gfx950"))

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"filter_fqns": self.filter_fqns}

    @model_validator(mode="after")
    def options_go_together(self) -> Self:
        """What one recipe has no use for."""
        if AUTO_FILTER in self.filter_fqns:
            message = (
                f"'{AUTO_FILTER}' is no part of a module's name, but a setting of its own here"
            )
            raise conflict(
                message, "filter_fqns", help=f"remove it from the list and set {AUTO_FILTER}: true"
            )
        if self.enable_fsdp_float8_all_gather and self.recipe_name != "tensorwise":
            message = f"a float8 all-gather needs one scale for a whole weight, and {self.recipe_name} has one for each row"
            help = "set recipe_name: tensorwise, or enable_fsdp_float8_all_gather: false"
            raise conflict(message, "enable_fsdp_float8_all_gather", "recipe_name", help=help)
        if self.precompute_float8_dynamic_scale_for_fsdp and not self.enable_fsdp_float8_all_gather:
            message = "scales are computed beforehand for a float8 all-gather, which is off"
            names = ("precompute_float8_dynamic_scale_for_fsdp", "enable_fsdp_float8_all_gather")
            raise conflict(
                message, *names, help="set enable_fsdp_float8_all_gather: true, or leave it out"
            )
        return self


class Float8GroupedMmConfig(ConverterConfig):
    """Routed experts whose grouped products are made in float8 with a scale for each row (torchao prototype)."""

    name: Literal["float8_grouped_mm"] = numerics("float8_grouped_mm")
    builds: ClassVar = "titanrun.components.converters.grouped_products:convert_to_float8"
    format: ClassVar = "float8"
    of_experts: ClassVar = True
    block: ClassVar = 16
    fqns: tuple[Text, ...] = numerics((), examples=[["experts"]])
    """Experts whose names have one of these texts in them are converted; empty: all."""

    @property
    def needs(self) -> Kernels | None:
        return Kernels("grouped products in float8", (9, 0), ("gfx942", "gfx950"))

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"fqns": self.fqns}


class Mxfp8LinearConfig(ConverterConfig):
    """Linear modules in MXFP8: float8 with a scale for each 32 numbers (OCP Microscaling Formats 1.0; torchao prototype)."""

    name: Literal["mxfp8_linear"] = numerics("mxfp8_linear")
    builds: ClassVar = "titanrun.components.converters.mxfp8_linear:convert"
    format: ClassVar = "mxfp8"
    block: ClassVar = 32
    recipe_name: Literal["mxfp8_cublas", "mxfp8_cublas_rceil"] = numerics("mxfp8_cublas")
    """How the scale of a block is rounded to a power of two: down, or up so that nothing overflows (rceil)."""
    mxfp8_dim1_cast_kernel_choice: Literal["triton", "cuda", "torch"] = performance("triton")
    """Which kernel casts along columns."""
    filter_fqns: tuple[Text, ...] = numerics(("output",))
    """Linear modules whose names have one of these texts in them stay as they are."""
    emulate: bool = performance(False)
    """Whether products are made in high precision from numbers rounded to MXFP8: slow, on any device."""

    @property
    def needs(self) -> Kernels | None:
        return None if self.emulate else Kernels("MXFP8 products", (10, 0), ("gfx950",))

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"filter_fqns": self.filter_fqns}


class Mxfp8GroupedMmConfig(ConverterConfig):
    """Routed experts whose grouped products are made in MXFP8 (torchao prototype)."""

    name: Literal["mxfp8_grouped_mm"] = numerics("mxfp8_grouped_mm")
    builds: ClassVar = "titanrun.components.converters.grouped_products:convert_to_mxfp8"
    format: ClassVar = "mxfp8"
    of_experts: ClassVar = True
    block: ClassVar = 32
    recipe_name: Literal["mxfp8", "mxfp8_wgrad_with_hp"] = numerics("mxfp8")
    """Whether the weights' gradients are made in MXFP8 too, or in high precision."""
    fqns: tuple[Text, ...] = numerics((), examples=[["experts"]])
    """Experts whose names have one of these texts in them are converted; empty: all."""
    emulate: bool = performance(False)
    """Whether products are made in bf16 from numbers rounded to MXFP8: slow, on any device."""

    @property
    def needs(self) -> Kernels | None:
        return None if self.emulate else Kernels("grouped products in MXFP8", (10, 0))

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"fqns": self.fqns}


class Nvfp4LinearConfig(ConverterConfig):
    """Linear modules in NVFP4: 4-bit numbers with a scale for each 16 (https://arxiv.org/abs/2509.25149; torchao prototype)."""

    name: Literal["nvfp4_linear"] = numerics("nvfp4_linear")
    builds: ClassVar = "titanrun.components.converters.nvfp4_linear:convert"
    format: ClassVar = "nvfp4"
    block: ClassVar = 128
    fqns: tuple[Text, ...] = numerics((), examples=[["feed_forward"]])
    """Linear modules whose names have one of these texts in them are converted; empty: all."""

    @property
    def needs(self) -> Kernels | None:
        return Kernels("NVFP4 products", (10, 0))

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"fqns": self.fqns}


class Fp32LmHeadConfig(ConverterConfig):
    """The output head and its logits in fp32, whatever the rest of the model computes in."""

    name: Literal["fp32_lm_head"] = numerics("fp32_lm_head")
    builds: ClassVar = "titanrun.components.converters.fp32_lm_head:convert"


class QatConfig(ConverterConfig):
    """Linear modules that round their weights in training as they will be quantised later (torchao; https://arxiv.org/abs/1712.05877).

    Gradients pass through the rounding. Weights stay as they are; `checkpoint export --quantize` of the same scheme makes them small.
    """

    name: Literal["qat"] = numerics("qat")
    builds: ClassVar = "titanrun.components.converters.quantized_linear:convert"
    scheme: Trained = numerics("int8_dynamic_activation_int4_weight")
    """What the model will be quantised to, by torchao's names: weights in 4 bits, and inputs of modules in 8 bits or as they are."""
    group_size: GroupSize = numerics(GROUP_SIZE)
    """Numbers of a row that share a scale."""
    filter_fqns: tuple[Text, ...] = numerics((HEAD,))
    """Linear modules whose names have one of these texts in them stay as they are."""

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"filter_fqns": self.filter_fqns}


class AdapterConfig(ConverterConfig):
    """Low-rank adapters beside linear modules: y = W x + alpha / rank * B A x, where W is frozen."""

    of_stacks: ClassVar = True
    rank: PositiveInt = numerics(8)
    """Width between A and B."""
    alpha: PositiveFloat = numerics(16.0)
    """What the adapter gives is multiplied by alpha / rank."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = numerics(0.0)
    """Share of the adapter's inputs that are zero at each step; W sees all of them."""
    target_modules: tuple[Text, ...] | None = numerics(
        None, examples=[["wq", "wv"], ["layers.*.attention.*"]]
    )
    """What gets an adapter: last steps of names, or patterns of whole names, where * is any text; null: all linear modules.

    Linear modules, and the matrices of stacked experts by the names they have there, or all of a stack by its own."""

    @property
    def scale(self) -> float:
        """What the adapter gives is multiplied by this."""
        return self.alpha / self.rank

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        return {"target_modules": self.target_modules or ()}

    def fits(self, pattern: str, name: str) -> bool:
        return fnmatchcase(name, pattern) or fnmatchcase(name.rpartition(".")[2], pattern)

    def targets(self, name: str) -> bool:
        """Whether target_modules means the module `name`."""
        return self.target_modules is None or any(
            self.fits(pattern, name) for pattern in self.target_modules
        )


class LoraConfig(AdapterConfig):
    """Low-rank adapters beside linear modules: y = W x + alpha / rank * B A x, where W is frozen (LoRA, https://arxiv.org/abs/2106.09685).

    A begins uniform within 1 / sqrt(width), B with zeros, so that the first step sees the model as it was.
    """

    name: Literal["lora"] = numerics("lora")
    builds: ClassVar = "titanrun.components.converters.lora:convert"


class QloraConfig(AdapterConfig):
    """As lora, beside frozen matrices in 4 or 8 bits (QLoRA, https://arxiv.org/abs/2305.14314).

    All linear modules of the model are packed but its output head, routers, and those whose rows are not in whole blocks.
    """

    name: Literal["qlora"] = numerics("qlora")
    builds: ClassVar = "titanrun.components.converters.lora:convert_packed"
    base: Literal["nf4", "int8"] = numerics("nf4")
    """How the numbers of frozen matrices are kept: one of 16 values that suit weights, or one of 255 even ones."""
    block_size: Literal[32, 64, 128, 256] = numerics(64)
    """Numbers of a row that share a scale in fp32."""
