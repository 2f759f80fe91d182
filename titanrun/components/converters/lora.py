"""Low-rank adapters of linear modules, whose own weights are frozen.

LoRA, https://arxiv.org/abs/2106.09685. Shapes: N tokens, I and O input and output width of the
product, R rank of an adapter.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import ALL_LINEAR, AdapterConfig, QloraConfig
from titanrun.components.converters.conversion_report import ConversionReport, replace_module
from titanrun.components.converters.linear_modules import is_already_converted, iter_linear_modules
from titanrun.components.converters.lora_experts import (
    ExpertLoraMixin,
    add_expert_adapters,
    find_expert_skip_reason,
    iter_expert_modules,
    select_expert_weights,
)
from titanrun.components.converters.quantization_config import LM_HEAD
from titanrun.distributed.determinism import WeightInitRng
from titanrun.distributed.dtensor import copy_full_into_, full_tensor, is_sharded
from titanrun.distributed.quantized_weights import maybe_dequantize, quantize_linear_


class LoraMixin(nn.Module):
    """Mixin that adds scale * B A x to the output of a linear module.

    Dropout zeroes a share of the input of A. It precedes the class of a linear module in the bases.
    Parameters of the linear module keep their names. A and B are added as `lora_a` and `lora_b`.
    """

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    dropout: float

    def forward(self, x_NI: Tensor) -> Tensor:
        """Add the output of the adapter to that of the linear module."""
        y_NO: Tensor = super().forward(x_NI)
        if not self.scale:
            # disabled
            return y_NO
        dropped_NI = (
            apply_sharded_dropout(x_NI, self.dropout) if self.dropout and self.training else x_NI
        )
        return self.add_update(
            y_NO, self.scale * F.linear(F.linear(dropped_NI, self.lora_a), self.lora_b)
        )

    def add_update(self, y_NO: Tensor, update_NO: Tensor) -> Tensor:
        """Add the output of the adapter to that of the linear module."""
        return y_NO + update_NO

    @torch.no_grad()
    def init_adapter(self, generator: WeightInitRng) -> None:
        """Initialize A uniformly within 1 / sqrt(I) and B with zeros.

        The bound of A is Kaiming's for a slope of sqrt(5).
        """
        bound = 1 / math.sqrt(self.lora_a.size(1))
        generator.seed_for_parameter(self.lora_a)
        # a rank with a shard draws the whole matrix
        draws_RI = torch.empty(self.lora_a.shape, dtype=torch.float32, device=generator.device)
        copy_full_into_(self.lora_a, draws_RI.uniform_(-bound, bound, generator=generator))
        self.lora_b.zero_()


class DoraMixin(LoraMixin):
    """Mixin of LoRA that also trains the norm of each output row of the adapted matrix.

    DoRA, https://arxiv.org/abs/2402.09353: y = m / |W + scale * B A| * (W + scale * B A) x, with
    the norm of each row, which has no gradient. m [O] is added as `lora_magnitude`.
    """

    lora_magnitude: nn.Parameter
    weight: nn.Parameter
    bias: nn.Parameter | None

    def add_update(self, y_NO: Tensor, update_NO: Tensor) -> Tensor:
        """Add the output of the adapter and multiply by m / norm. The bias is not multiplied."""
        factor_O = self.lora_magnitude.float() / self.compute_row_norms()
        product_NO = y_NO if self.bias is None else y_NO - self.bias.to(y_NO.dtype)
        # the difference to 1 is rounded to the dtype of the output, not the factor
        added_NO = (factor_O - 1).to(y_NO.dtype) * product_NO
        return y_NO + added_NO + factor_O.to(y_NO.dtype) * update_NO

    @torch.no_grad()
    def compute_row_norms(self) -> Tensor:
        """Return the norm of each row of W + scale * B A in fp32, [O]."""
        update_OI = self.lora_b @ self.lora_a
        adapted_OI = maybe_dequantize(self.weight).detach() + self.scale * update_OI
        norms_O: Tensor = torch.linalg.vector_norm(adapted_OI, dim=1, dtype=torch.float32)
        return norms_O

    @torch.no_grad()
    def init_adapter(self, generator: WeightInitRng) -> None:
        """Initialize A and B as in LoRA, and m with the norms of W's rows."""
        super().init_adapter(generator)
        self.reset_magnitude()

    @torch.no_grad()
    def reset_magnitude(self) -> None:
        """Set m to the norms of W's rows, with which an adapter whose B is 0 changes nothing.

        Collective if W is sharded: all its ranks must call this.
        """
        whole_OI = full_tensor(maybe_dequantize(self.weight))
        copy_full_into_(
            self.lora_magnitude, torch.linalg.vector_norm(whole_OI, dim=1, dtype=torch.float32)
        )


def apply_sharded_dropout(x_NI: Tensor, share: float) -> Tensor:
    """Zero a share of `x_NI` and scale the rest accordingly.

    Tensor-parallel ranks, whose RNGs are equal, draw for the whole tensor and take their shards:
    they zero the same inputs, on a CPU the same as a single process.
    """
    if not is_sharded(x_NI):
        return F.dropout(x_NI, share)
    placed: Any = x_NI
    kept_NI = (
        torch.empty(x_NI.shape, dtype=x_NI.dtype, device=x_NI.device)
        .bernoulli_(1 - share)
        .div_(1 - share)
    )
    (placement,), mesh = placed.placements, placed.device_mesh
    if placement.is_shard():
        kept_NI = kept_NI.chunk(mesh.size(), placement.dim)[mesh.get_local_rank()]
    # the class through its object: a compiled graph has no imports
    own_NI: Tensor = type(placed).from_local(kept_NI, mesh, placed.placements, run_check=False)
    return x_NI * own_NI


def convert(config: AdapterConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Freeze the model and add adapters to linear modules; parameters keep their names."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    taken: list[str] = []
    left: dict[str, str] = {}
    for name, linear in list(iter_linear_modules(model)):
        reason = find_skip_reason(config, model, name, linear)
        if reason is not None:
            left[name] = reason
            continue
        replace_module(model, name, add_adapter(config, linear))
        taken.append(name)
    for name, experts in list(iter_expert_modules(model)):
        reason = find_expert_skip_reason(config, name, experts)
        if reason is not None:
            left[name] = reason
            continue
        matrices = select_expert_weights(config, name, experts)
        add_expert_adapters(config, experts, matrices)
        taken += [f"{name}.{matrix}" for matrix in matrices]
    kind = f"rank {config.rank}, scale {config.scale:g}"
    kind += ", with magnitudes" if config.magnitude else ""
    return ConversionReport(converted=tuple(taken), skipped=left, kind=kind)


def convert_qlora(config: QloraConfig, *, model: nn.Module, shards: int) -> ConversionReport:
    """Add adapters as in `convert`, with quantized frozen matrices."""
    names = list_quantized_modules(config, model)
    for name in names:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        quantize_linear_(linear, config.base, config.block_size)
    found = convert(config, model=model, shards=shards)
    return replace(found, kind=f"{found.kind}, {len(names)} matrices in {config.base}")


def list_quantized_modules(config: QloraConfig, model: nn.Module) -> list[str]:
    """Return the linear modules whose matrices are quantized."""
    return [
        name for name, linear in iter_linear_modules(model) if is_quantized(config, name, linear)
    ]


def is_quantized(config: QloraConfig, name: str, linear: nn.Linear) -> bool:
    """Return whether the matrix of a module is quantized."""
    # rounding in the head affects the logits directly, and it may share its matrix with the
    # embedding
    stays = name == LM_HEAD or ".router." in name or is_already_converted(name, linear) is not None
    return not stays and linear.weight.size(1) % config.block_size == 0


def add_adapter(config: AdapterConfig, linear: nn.Linear) -> nn.Linear:
    """Add an adapter, whose memory is not allocated yet, to the linear module and return it."""
    # for mypy a class of modules has no hash
    kind: Any = type(linear)
    linear.__class__ = get_lora_linear_class(kind, config.magnitude)
    found: Any = linear
    found.scale, found.dropout = config.scale, config.dropout
    like: dict[str, Any] = {"dtype": linear.weight.dtype, "device": linear.weight.device}
    found.lora_a = nn.Parameter(torch.empty(config.rank, linear.in_features, **like))
    found.lora_b = nn.Parameter(torch.empty(linear.out_features, config.rank, **like))
    if config.magnitude:
        found.lora_magnitude = nn.Parameter(torch.empty(linear.out_features, **like))
    return linear


@cache
def get_lora_linear_class(kind: type[nn.Linear], has_magnitude: bool) -> type[nn.Linear]:
    """Return a class with an adapter mixin and the given class: LoraLinear, DoraFloat8Linear."""
    if has_magnitude:
        return type(f"Dora{kind.__name__}", (DoraMixin, kind), {})
    return type(f"Lora{kind.__name__}", (LoraMixin, kind), {})


def find_skip_reason(
    config: AdapterConfig, model: nn.Module, name: str, linear: nn.Linear
) -> str | None:
    """Return why a module gets no adapter, None if it gets one."""
    if not config.is_target(name):
        is_head = name == LM_HEAD and ALL_LINEAR in (config.target_modules or ())
        return "it is the output head" if is_head else "target_modules does not name it"
    if isinstance(linear, LoraMixin):
        return "it has an adapter already"
    if getattr(linear, "keeps_dtype", False):
        return "it computes in another dtype than the rest"
    if ".router." in name:
        return "it is a router, and readers of adapters do not support it"
    owners = [
        other
        for other, weight in model.named_parameters(remove_duplicate=False)
        if weight is linear.weight
    ]
    return (
        None
        if len(owners) == 1
        else f"it shares its matrix with {owners[0].removesuffix('.weight')}"
    )


def init_adapters(model: nn.Module, generator: WeightInitRng) -> None:
    """Initialize all adapters, each from the RNG of its name."""
    for module in model.modules():
        if isinstance(module, LoraMixin | ExpertLoraMixin):
            module.init_adapter(generator)


def reset_magnitudes(model: nn.Module) -> None:
    """Set the magnitudes of adapters to the norms of the frozen matrices.

    Must be called after other frozen weights have been loaded. Collective if weights are sharded.
    """
    for module in model.modules():
        if isinstance(module, DoraMixin):
            module.reset_magnitude()
