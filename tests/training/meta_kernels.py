"""Stand-ins for kernels of a GPU that torch does not have for the meta device."""

from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention


def attend_in_one_kernel(q_BNTH: Tensor, k_BKTH: Tensor, v_BKTV: Tensor, **settings: Any) -> Any:
    """Stands for the attention kernels of a GPU, which hold no scores: torch has none for meta."""
    width = max(q_BNTH.size(-1), v_BKTV.size(-1))
    out_BNTH, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
        q_BNTH, *(F.pad(each, (0, width - each.size(-1))) for each in (k_BKTH, v_BKTV)), 0.0, True
    )
    return out_BNTH[..., : v_BKTV.size(-1)]


def use_meta_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch take the meta device for one with fused AdamW and attention kernels."""
    adam = import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *given: None)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend_in_one_kernel)
    monkeypatch.setattr(
        "titanrun.models.shared.flex_attention.compile_flex_attention",
        lambda: (attend_in_one_kernel, flex_attention.create_block_mask),
    )


class FusedRMSNorm(torch.autograd.Function):
    """Stands for the one kernel of a GPU, which keeps its input and a number for each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        inverse = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, inverse)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def use_fused_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let norms take one kernel. For the meta device torch adds up fp32 copies of the stream."""

    def normalize(x: Tensor, shape: Any, weight: Tensor, eps: float | None = None) -> Tensor:
        return FusedRMSNorm.apply(x, weight)

    monkeypatch.setattr(F, "rms_norm", normalize)
