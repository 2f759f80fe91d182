"""Low-rank adapters beside linear modules, whose own weights are frozen (LoRA, https://arxiv.org/abs/2106.09685).

Shapes: N tokens, I and O width before and after the product, R rank of an adapter.
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.converters.config import AdapterConfig, QloraConfig
from titanrun.components.converters.conversion import Conversion, replace_module
from titanrun.components.converters.linear_modules import is_rewritten, linear_modules
from titanrun.components.converters.lora_experts import (
    ExpertAdapters,
    adapt_stack,
    matrices_meant,
    reason_to_leave_stack,
    stacks,
)
from titanrun.components.converters.schemes import HEAD
from titanrun.distributed.packed import pack_linear
from titanrun.distributed.seeds import WeightGenerator
from titanrun.distributed.shards import fill, is_split


class Adapter(nn.Module):
    """What a linear module gives, plus scale * B A x of the same x, of which `dropout` leaves out a share.

    Goes in front of the class of a linear module, whose names of parameters stay; A and B are `lora_a` and `lora_b` beside them.
    """

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float
    dropout: float

    def forward(self, x_NI: Tensor) -> Tensor:
        y_NO: Tensor = super().forward(x_NI)
        seen_NI = left_out(x_NI, self.dropout) if self.dropout and self.training else x_NI
        return y_NO + self.scale * F.linear(F.linear(seen_NI, self.lora_a), self.lora_b)

    @torch.no_grad()
    def init_adapter(self, generator: WeightGenerator) -> None:
        """Draws A uniform within 1 / sqrt(I), which is Kaiming's bound for a slope of sqrt(5); B is zero."""
        bound = 1 / math.sqrt(self.lora_a.size(1))
        generator.restart_for(self.lora_a)
        # a rank that holds a part draws the whole
        draws_RI = torch.empty(self.lora_a.shape, dtype=torch.float32, device=generator.device)
        fill(self.lora_a, draws_RI.uniform_(-bound, bound, generator=generator))
        self.lora_b.zero_()


def left_out(x_NI: Tensor, share: float) -> Tensor:
    """`x_NI` with a share of it at zero, and the rest as much larger.

    Tensor-parallel ranks, whose generators are equal, draw for the whole and take their part: they leave out the same inputs, on a CPU
    those that one process leaves out.
    """
    if not is_split(x_NI):
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
    # the class by its object: a compiled graph has no imports
    own_NI: Tensor = type(placed).from_local(kept_NI, mesh, placed.placements, run_check=False)
    return x_NI * own_NI


def convert(config: AdapterConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Freezes the model, and gives linear modules an adapter; the names of its parameters stay."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    taken: list[str] = []
    left: dict[str, str] = {}
    for name, linear in list(linear_modules(model)):
        reason = reason_to_leave(config, model, name, linear)
        if reason is not None:
            left[name] = reason
            continue
        replace_module(model, name, adapted(config, linear))
        taken.append(name)
    for name, experts in list(stacks(model)):
        reason = reason_to_leave_stack(config, name, experts)
        if reason is not None:
            left[name] = reason
            continue
        matrices = matrices_meant(config, name, experts)
        adapt_stack(config, experts, matrices)
        taken += [f"{name}.{matrix}" for matrix in matrices]
    return Conversion(
        taken=tuple(taken), left=left, kind=f"rank {config.rank}, scale {config.scale:g}"
    )


def convert_packed(config: QloraConfig, *, model: nn.Module, shards: int) -> Conversion:
    """As `convert`, with frozen matrices that are packed."""
    names = packable(config, model)
    for name in names:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        pack_linear(linear, config.base, config.block_size)
    found = convert(config, model=model, shards=shards)
    return replace(found, kind=f"{found.kind}, {len(names)} matrices in {config.base}")


def packable(config: QloraConfig, model: nn.Module) -> list[str]:
    """The linear modules whose matrices are packed."""
    return [name for name, linear in linear_modules(model) if packs(config, name, linear)]


def packs(config: QloraConfig, name: str, linear: nn.Linear) -> bool:
    """Whether the matrix of a module is packed."""
    # what the head rounds away is the last that is computed, and it may share its matrix with the embedding
    stays = name == HEAD or ".router." in name or is_rewritten(name, linear) is not None
    return not stays and linear.weight.size(1) % config.block_size == 0


def adapted(config: AdapterConfig, linear: nn.Linear) -> nn.Linear:
    """The linear module with an adapter, whose memory is still to come."""
    linear.__class__ = adapted_class(type(linear))
    found: Any = linear
    found.scale, found.dropout = config.scale, config.dropout
    like = {"dtype": linear.weight.dtype, "device": linear.weight.device}
    found.lora_a = nn.Parameter(torch.empty(config.rank, linear.in_features, **like))
    found.lora_b = nn.Parameter(torch.empty(linear.out_features, config.rank, **like))
    return linear


@cache
def adapted_class(kind: type[nn.Linear]) -> type[nn.Linear]:
    """A class of linear modules with an adapter in front: LoraLinear, LoraFloat8Linear."""
    return type(f"Lora{kind.__name__}", (Adapter, kind), {})


def reason_to_leave(
    config: AdapterConfig, model: nn.Module, name: str, linear: nn.Linear
) -> str | None:
    """Why a module gets no adapter; None: it gets one."""
    if not config.targets(name):
        return "target_modules does not name it"
    if isinstance(linear, Adapter):
        return "it has an adapter already"
    if getattr(linear, "keeps_dtype", False):
        return "it computes in another dtype than the rest"
    if ".router." in name:
        return "it chooses experts, and is no module of its own for those who read adapters"
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


def init_adapters(model: nn.Module, generator: WeightGenerator) -> None:
    """Draws the first weights of all adapters, each from numbers of its own name."""
    for module in model.modules():
        if isinstance(module, Adapter | ExpertAdapters):
            module.init_adapter(generator)
