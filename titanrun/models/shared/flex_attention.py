"""Attention with torch's flex_attention. Shapes: see `sdpa_attention`."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from titanrun.distributed.device import is_accelerator
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.sdpa_attention import SdpaAttention, apply_soft_cap

# The block sizes of its kernels are chosen by timing them, once for each shape. Selective
# recomputation sees the compiled kernels as one operation, so that it can keep their output.
COMPILE_OPTIONS: dict[str, Any] = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
    "triton.cudagraphs": False,
    "wrap_inductor_compiled_regions": True,
}


class FlexAttention(SdpaAttention):
    """Masked attention with torch's flex_attention (https://arxiv.org/abs/2412.05496).

    It skips masked blocks. On a CPU, where it has no backward pass, the mask is materialized.
    Without a mask other than causality, scaled_dot_product_attention skips as much.
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
        """Build the kernel and its block mask, or the mask of `SdpaAttention` if it serves."""
        is_plain = self.soft_cap is None and self.mask.is_plain_causal(
            num_queries if num_keys is None else num_keys, documents_BT
        )
        if is_plain or not is_accelerator(device):
            return super().build_mask(num_queries, documents_BT, device=device, num_keys=num_keys)
        kernel, build = compile_flex_attention()
        # together with the kernel, which a compiled layer cannot look up
        return kernel, build_block_mask(
            build,
            self.mask,
            num_queries,
            num_queries if num_keys is None else num_keys,
            documents_BT,
            device,
        )

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
        kernel, blocks = mask
        grouped = q_BNSH.size(1) != k_BKTH.size(1)
        given = {
            "block_mask": blocks,
            "scale": self.scale,
            "enable_gqa": grouped,
            "return_lse": sinks_N is not None,
        }
        if self.soft_cap is not None:
            given["score_mod"] = self.cap_score
        if sinks_N is None:
            out_BNSH: Tensor = kernel(q_BNSH, k_BKTH, v_BKTH, **given)
            return out_BNSH
        out_BNSH, total_BNS = kernel(q_BNSH, k_BKTH, v_BKTH, **given)
        # the fraction of the softmax that remains for the keys in addition to the sink
        share_BNS1 = (total_BNS - sinks_N.float().unsqueeze(-1)).sigmoid().unsqueeze(-1)
        scaled_BNSH: Tensor = (out_BNSH * share_BNS1).type_as(out_BNSH)
        return scaled_BNSH

    def cap_score(
        self, score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        """Apply the soft cap to a score."""
        return apply_soft_cap(score, self.soft_cap)


def build_block_mask(
    create_mask: Callable[..., Any],
    mask: CausalMask,
    num_queries: int,
    num_keys: int,
    documents_BT: Tensor | None,
    device: torch.device,
) -> Any:
    """Build flex_attention's block mask with `create_mask`."""
    first, rows = (
        num_keys - num_queries,
        None if documents_BT is None or not mask.separates_documents else documents_BT.size(0),
    )

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask.allows_attention(row, query + first, key, documents_BT)

    return create_mask(sees, rows, None, num_queries, num_keys, device=device)


@cache
def compile_flex_attention() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return torch's flex_attention and create_block_mask, compiled.

    Uncompiled they materialize every score and its mask. In a compiled layer the options of its own
    compilation apply.
    """
    # imported by name: it imports torch's compiler, which takes seconds
    module = import_module("torch.nn.attention.flex_attention")
    known = import_module("torch._inductor").list_options()
    options = {name: value for name, value in COMPILE_OPTIONS.items() if name in known}
    return (
        torch.compile(module.flex_attention, options=options),
        torch.compile(module.create_block_mask),
    )
