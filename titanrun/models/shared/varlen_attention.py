"""Attention with torch's varlen_attn. Shapes: see `sdpa_attention`."""

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.torch_versions import adapt_varlen_kernel
from titanrun.models.shared.sdpa_attention import SdpaAttention


class VarlenAttention(SdpaAttention):
    """Masked attention with torch's varlen_attn, in which documents are separate sequences.

    On a CPU the mask is materialized.
    """

    def build_mask(
        self,
        num_queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        num_keys: int | None = None,
        document_starts_BM: Tensor | None = None,
    ) -> Any:
        """Build the kernel with document ends, or a materialized mask on a CPU."""
        if not is_accelerator(device) or documents_BT is None:
            return super().build_mask(num_queries, documents_BT, device=device, num_keys=num_keys)
        assert num_keys in (None, num_queries), (
            "a rule rejects varlen attention with all-gathered keys"
        )
        kernel = adapt_varlen_kernel(import_module("torch.nn.attention.varlen").varlen_attn)
        if document_starts_BM is not None:
            # the longest length only sizes the grid: that of a row does, and is known
            return kernel, self.mask.join_segments(document_starts_BM, num_queries), num_queries
        ends_X = (
            self.mask.compute_segment_starts(
                documents_BT.size(0), num_queries, documents_BT, device=device
            )
            .flatten()
            .nonzero()
            .flatten()
        )
        ends_X = F.pad(ends_X, (0, 1), value=documents_BT.numel()).to(torch.int32)
        # documents that were numbered on the device: the host waits once per forward pass
        return kernel, ends_X, int(ends_X.diff().max())

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        mask: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output [B, N, S, H]."""
        if not isinstance(mask, tuple):
            return super().forward(q_BNSH, k_BKTH, v_BKTH, mask, sinks_N)
        assert sinks_N is None and self.soft_cap is None, (
            "families with sinks or soft caps do not support varlen attention"
        )
        kernel, ends, longest = mask
        q_XNH, k_XKH, v_XKH = (
            tensor.transpose(1, 2).flatten(0, 1) for tensor in (q_BNSH, k_BKTH, v_BKTH)
        )
        window = (-1 if self.mask.window is None else self.mask.window - 1, 0)
        given = {
            "scale": q_XNH.size(-1) ** -0.5 if self.scale is None else self.scale,
            "window_size": window,
            "enable_gqa": q_XNH.size(1) != k_XKH.size(1),
        }
        equal = pad_to_equal_widths(q_XNH, k_XKH, v_XKH)
        out_XNH: Tensor = kernel(*equal, ends, ends, longest, longest, **given)
        out_BSNH: Tensor = out_XNH[..., : v_XKH.size(-1)].unflatten(0, (q_BNSH.size(0), -1))
        return out_BSNH.transpose(1, 2)


def pad_to_equal_widths(*tensors: Tensor) -> list[Tensor]:
    """Pad queries, keys and values with zeros to the width of the widest, as kernels need.

    Zeros change neither scores nor the output within the values' own width.
    """
    width = max(tensor.size(-1) for tensor in tensors)
    return [
        tensor if tensor.size(-1) == width else F.pad(tensor, (0, width - tensor.size(-1)))
        for tensor in tensors
    ]
