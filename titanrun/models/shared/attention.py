"""Attention back ends.

Shapes: B batch, T tokens of a sequence, S tokens of its end, N query heads, K key and value heads
(N is a multiple of K), H head width, X = B * T tokens of all sequences, one after the other, M
documents of a sequence at most.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.torch_versions import adapt_varlen_kernel
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.config import AttentionConfig

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


class FlexAttention(SdpaAttention):
    """Masked attention with torch's flex_attention (https://arxiv.org/abs/2412.05496).

    It skips masked blocks. On a CPU, where it has no backward pass, the mask is materialized.
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
        """Build the kernel and its block mask, or a materialized mask on a CPU."""
        if not is_accelerator(device):
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

    Uncompiled they materialize every score and its mask.
    """
    # imported by name: it imports torch's compiler, which takes seconds
    module = import_module("torch.nn.attention.flex_attention")
    return torch.compile(module.flex_attention), torch.compile(module.create_block_mask)


class FullAttention(nn.Module):
    """Attention without a mask: each token sees all tokens of its sequence, also later ones."""

    def forward(
        self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, mask: None, sinks_N: None = None
    ) -> Tensor:
        """Return [B, N, S, H]. `mask` and `sinks_N` are in the interface of every back end."""
        with sdpa_kernel(KERNELS, set_priority=True):
            return F.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH)


BACKENDS: dict[str, type[SdpaAttention]] = {
    "sdpa": SdpaAttention,
    "flex": FlexAttention,
    "varlen": VarlenAttention,
}


def build_attention_backend(
    config: AttentionConfig,
    *,
    window: int | None = None,
    block: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> SdpaAttention:
    """Build the back end that the config names, for one layer.

    Args:
        config: selects the back end, and whether documents see each other.
        window: maximum number of keys that a query sees.
        block: block size. Tokens of different blocks of a sequence do not see each other.
        scale: factor on the scores. None: H^-0.5.
        soft_cap: limit of the scores. None: no cap.
    """
    mask = CausalMask(separates_documents=config.mask == "block_causal", window=window, block=block)
    return BACKENDS[config.backend](mask, scale=scale, soft_cap=soft_cap)
