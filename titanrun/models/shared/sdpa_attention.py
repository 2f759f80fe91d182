"""Attention with torch's scaled_dot_product_attention.

Shapes: B batch, T tokens of a sequence, S tokens of its end, N query heads, K key and value heads
(N is a multiple of K), H head width, X = B * T tokens of all sequences, one after the other, M
documents of a sequence at most.
"""

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titanrun.distributed.device import is_accelerator
from titanrun.models.shared.attention_masks import CausalMask

# fastest first; torch uses the first that supports the device, dtype and shapes
KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
# kernels need head widths that are multiples of this
HEAD_DIM_MULTIPLE = 8


class SdpaAttention(nn.Module):
    """Masked attention with torch's scaled_dot_product_attention.

    A mask that is more than causal is materialized.

    Args:
        mask: keys that a query sees.
        scale: factor on the scores. None: H^-0.5.
        soft_cap: limit c of the scores, which become c tanh(s / c)
            (https://arxiv.org/abs/2408.00118, section 2.1). None: no cap.
    """

    def __init__(
        self, mask: CausalMask, *, scale: float | None = None, soft_cap: float | None = None
    ) -> None:
        super().__init__()
        self.mask = mask
        self.scale = scale
        self.soft_cap = soft_cap

    def build_mask(
        self,
        num_queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        num_keys: int | None = None,
        document_starts_BM: Tensor | None = None,
    ) -> Any:
        """Build the mask for `forward`, once for all layers with the same mask.

        Args:
            num_queries: number of queries of each sequence, its last tokens.
            documents_BT: document id of each key. None if each sequence is one document.
            device: device on which the mask is used.
            num_keys: number of keys of each sequence. None: as many as queries.
            document_starts_BM: columns at which documents start, padded with T. Only back ends for
                separate sequences read them.
        """
        num_keys = num_queries if num_keys is None else num_keys
        if self.mask.is_plain_causal(num_keys, documents_BT):
            return None
        return self.mask.to_dense(num_queries, num_keys, documents_BT, device=device)

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        mask: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Return the attention output [B, N, S, H].

        Args:
            q_BNSH: queries of the end of each sequence.
            k_BKTH: all keys of it.
            v_BKTH: all values of it.
            mask: result of `build_mask`.
            sinks_N: score per head of a sink: a key that every query sees, and whose value is zero.
        """
        scale = q_BNSH.size(-1) ** -0.5 if self.scale is None else self.scale
        if self.soft_cap is not None:
            return compute_soft_capped_attention(
                q_BNSH, k_BKTH, v_BKTH, mask, sinks_N, scale=scale, soft_cap=self.soft_cap
            )
        if sinks_N is not None:
            q_BNSH, k_BKTH, v_BKTH = add_sink_key(q_BNSH, k_BKTH, v_BKTH, sinks_N / scale)
            mask = None if mask is None else F.pad(mask, (1, 0), value=True)
        whole = q_BNSH.size(2) == k_BKTH.size(2)
        if mask is None and not whole:
            mask = build_causal_mask(q_BNSH.size(2), k_BKTH.size(2), q_BNSH.device)
        grouped = q_BNSH.size(1) != k_BKTH.size(1)
        with sdpa_kernel(KERNELS, set_priority=True):
            return F.scaled_dot_product_attention(
                q_BNSH,
                k_BKTH,
                v_BKTH,
                attn_mask=mask,
                is_causal=mask is None,
                scale=scale,
                enable_gqa=grouped,
            )


def add_sink_key(
    q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, sinks_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a first key whose score is `sinks_N` for each head, and whose value is 0.

    The key uses additional width, so that the sinks have gradients with every kernel, and heads can
    share it.
    """
    sink_BNS1 = sinks_N.to(q_BNSH.dtype).view(1, -1, 1, 1).expand(*q_BNSH.shape[:3], 1)
    q_BNSI = F.pad(torch.cat([q_BNSH, sink_BNS1], dim=-1), (0, HEAD_DIM_MULTIPLE - 1))
    k_BKTI = F.pad(k_BKTH, (0, HEAD_DIM_MULTIPLE, 1, 0))
    is_sink = torch.zeros_like(k_BKTI[:1, :1])
    is_sink[..., 0, k_BKTH.size(-1)] = 1
    return q_BNSI, k_BKTI + is_sink, F.pad(v_BKTH, (0, 0, 1, 0))


def compute_soft_capped_attention(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTH: Tensor,
    mask: Tensor | None,
    sinks_N: Tensor | None,
    *,
    scale: float,
    soft_cap: float,
) -> Tensor:
    """Return the output of `SdpaAttention.forward` with capped scores.

    torch's kernels do not support caps, so all scores are materialized.
    """
    group, queries, keys = q_BNSH.size(1) // k_BKTH.size(1), q_BNSH.size(2), k_BKTH.size(2)
    if mask is None:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q_BNSH.device).tril(
            keys - queries
        )
    k_BNTH, v_BNTH = k_BKTH.repeat_interleave(group, dim=1), v_BKTH.repeat_interleave(group, dim=1)
    scores_BNST = apply_soft_cap((q_BNSH @ k_BNTH.mT * scale).float(), soft_cap).masked_fill(
        ~mask, float("-inf")
    )
    if sinks_N is not None:
        sinks_BNS1 = sinks_N.float().view(1, -1, 1, 1).expand(*scores_BNST.shape[:3], 1)
        scores_BNST = torch.cat([scores_BNST, sinks_BNS1], dim=-1)
    shares_BNST = scores_BNST.softmax(-1)[..., :keys].type_as(v_BNTH)
    return shares_BNST @ v_BNTH


def apply_soft_cap(values: Tensor, soft_cap: float | None) -> Tensor:
    """Cap values smoothly at +-soft_cap. None: return them as they are."""
    return values if soft_cap is None else soft_cap * torch.tanh(values / soft_cap)


def build_causal_mask(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Build the causal mask of the last `num_queries` tokens.

    It is symbolic for an accelerator's kernels, else bool [S, T].
    """
    if is_accelerator(device):
        # imported by name: it imports torch's compiler, which takes seconds
        symbolic: Tensor = import_module("torch.nn.attention.bias").causal_lower_right(
            num_queries, num_keys
        )
        return symbolic
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(
        num_keys - num_queries
    )


class FullAttention(nn.Module):
    """Attention without a mask: each token sees all tokens of its sequence, also later ones."""

    def forward(
        self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, mask: None, sinks_N: None = None
    ) -> Tensor:
        """Return [B, N, S, H]. `mask` and `sinks_N` are in the interface of every back end."""
        with sdpa_kernel(KERNELS, set_priority=True):
            return F.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH)
