"""Attention back ends: from queries, keys and values to what each token gathers.

Shapes: B batch, T tokens of a row, S tokens of its end, N query heads, K key and value heads (N is a multiple of K), H head width,
X = B * T tokens of all rows, one after the other.
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
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.masks import Mask

# fastest first; torch falls through to the first that takes the device, dtype and shapes
KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
# kernels take head widths that are multiples of it
WIDTH_UNIT = 8


class SdpaAttention(nn.Module):
    """Masked attention by torch's scaled_dot_product_attention. A mask that is more than causal is written out.

    Args:
        mask: which keys a query sees.
        scale: of the scores; H^-0.5 where it is None.
        soft_cap: what scores approach and never exceed, c tanh(s / c) (https://arxiv.org/abs/2408.00118, section 2.1); None: no cap.
    """

    def __init__(
        self, mask: Mask, *, scale: float | None = None, soft_cap: float | None = None
    ) -> None:
        super().__init__()
        self.mask = mask
        self.scale = scale
        self.soft_cap = soft_cap

    def seen(
        self,
        queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        keys: int | None = None,
    ) -> Any:
        """The mask in the form that `forward` takes, made once for all layers that have the same one.

        Args:
            queries: of each row, its last ones.
            documents_BT: which document each key belongs to; None where a row is one.
            device: where it is used.
            keys: of each row; as many as queries where it is None.
        """
        keys = queries if keys is None else keys
        if self.mask.is_causal(keys, documents_BT):
            return None
        return self.mask.written_out(queries, keys, documents_BT, device=device)

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        seen: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Gives [B, N, S, H].

        Args:
            q_BNSH: the queries of each row's end.
            k_BKTH: all keys of it.
            v_BKTH: all values of it.
            seen: of `seen`.
            sinks_N: for each head the score of a sink: a key that every query sees, and whose value is zero.
        """
        scale = q_BNSH.size(-1) ** -0.5 if self.scale is None else self.scale
        if self.soft_cap is not None:
            return capped_attention(
                q_BNSH, k_BKTH, v_BKTH, seen, sinks_N, scale=scale, soft_cap=self.soft_cap
            )
        if sinks_N is not None:
            q_BNSH, k_BKTH, v_BKTH = with_sink(q_BNSH, k_BKTH, v_BKTH, sinks_N / scale)
            seen = None if seen is None else F.pad(seen, (1, 0), value=True)
        whole = q_BNSH.size(2) == k_BKTH.size(2)
        mask = (
            end_mask(q_BNSH.size(2), k_BKTH.size(2), q_BNSH.device)
            if seen is None and not whole
            else seen
        )
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
    """The same by torch's flex_attention, which skips what is masked (https://arxiv.org/abs/2412.05496); on a CPU, where it has no
    backward pass, by a mask written out."""

    def seen(
        self,
        queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        keys: int | None = None,
    ) -> Any:
        if not is_accelerator(device):
            return super().seen(queries, documents_BT, device=device, keys=keys)
        kernel, build = compiled_flex()
        # with the kernel, which a compiled layer must not look for
        return kernel, block_mask(
            build, self.mask, queries, queries if keys is None else keys, documents_BT, device
        )

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        seen: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(seen, tuple):
            return super().forward(q_BNSH, k_BKTH, v_BKTH, seen, sinks_N)
        kernel, blocks = seen
        grouped = q_BNSH.size(1) != k_BKTH.size(1)
        given = {
            "block_mask": blocks,
            "scale": self.scale,
            "enable_gqa": grouped,
            "return_lse": sinks_N is not None,
        }
        if self.soft_cap is not None:
            given["score_mod"] = self.capped
        if sinks_N is None:
            out_BNSH: Tensor = kernel(q_BNSH, k_BKTH, v_BKTH, **given)
            return out_BNSH
        out_BNSH, total_BNS = kernel(q_BNSH, k_BKTH, v_BKTH, **given)
        # the share of a softmax that is left for the keys when the sink is one of them
        share_BNS1 = (total_BNS - sinks_N.float().unsqueeze(-1)).sigmoid().unsqueeze(-1)
        return (out_BNSH * share_BNS1).type_as(out_BNSH)

    def capped(
        self, score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        """A score below the cap."""
        return soft_capped(score, self.soft_cap)


class VarlenAttention(SdpaAttention):
    """The same by torch's varlen_attn, for which each document is a row of its own length; on a CPU by a mask written out."""

    def seen(
        self,
        queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        keys: int | None = None,
    ) -> Any:
        if not is_accelerator(device) or documents_BT is None:
            return super().seen(queries, documents_BT, device=device, keys=keys)
        assert keys in (None, queries), "a rule refuses varlen attention where ranks gather keys"
        ends_X = (
            self.mask.segments(documents_BT.size(0), queries, documents_BT, device=device)
            .flatten()
            .nonzero()
            .flatten()
        )
        ends_X = F.pad(ends_X, (0, 1), value=documents_BT.numel()).to(torch.int32)
        # the kernel wants the longest as a number, for which the host waits once a pass
        return (
            import_module("torch.nn.attention.varlen").varlen_attn,
            ends_X,
            int(ends_X.diff().max()),
        )

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        seen: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(seen, tuple):
            return super().forward(q_BNSH, k_BKTH, v_BKTH, seen, sinks_N)
        assert sinks_N is None and self.soft_cap is None, (
            "families with sinks or soft caps lack varlen attention"
        )
        kernel, ends, longest = seen
        q_XNH, k_XKH, v_XKH = (
            tensor.transpose(1, 2).flatten(0, 1) for tensor in (q_BNSH, k_BKTH, v_BKTH)
        )
        window = (-1 if self.mask.window is None else self.mask.window - 1, 0)
        grouped = q_XNH.size(1) != k_XKH.size(1)
        given = {"scale": self.scale, "window_size": window, "enable_gqa": grouped}
        out_XNH: Tensor = kernel(q_XNH, k_XKH, v_XKH, ends, ends, longest, longest, **given)
        return out_XNH.unflatten(0, (q_BNSH.size(0), -1)).transpose(1, 2)


def with_sink(
    q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, sinks_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with a first key whose score with the queries of each head is what `sinks_N` says, and whose value is 0.

    As a key of more width than the others, so that the sinks have gradients with every kernel, and heads can share it.
    """
    sink_BNS1 = sinks_N.to(q_BNSH.dtype).view(1, -1, 1, 1).expand(*q_BNSH.shape[:3], 1)
    q_BNSI = F.pad(torch.cat([q_BNSH, sink_BNS1], dim=-1), (0, WIDTH_UNIT - 1))
    k_BKTI = F.pad(k_BKTH, (0, WIDTH_UNIT, 1, 0))
    is_sink = torch.zeros_like(k_BKTI[:1, :1])
    is_sink[..., 0, k_BKTH.size(-1)] = 1
    return q_BNSI, k_BKTI + is_sink, F.pad(v_BKTH, (0, 0, 1, 0))


def capped_attention(
    q_BNSH: Tensor,
    k_BKTH: Tensor,
    v_BKTH: Tensor,
    seen: Tensor | None,
    sinks_N: Tensor | None,
    *,
    scale: float,
    soft_cap: float,
) -> Tensor:
    """As `SdpaAttention.forward` of capped scores, of which torch's kernels have none: every score is written out."""
    group, queries, keys = q_BNSH.size(1) // k_BKTH.size(1), q_BNSH.size(2), k_BKTH.size(2)
    if seen is None:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=q_BNSH.device).tril(
            keys - queries
        )
    k_BNTH, v_BNTH = k_BKTH.repeat_interleave(group, dim=1), v_BKTH.repeat_interleave(group, dim=1)
    scores_BNST = soft_capped((q_BNSH @ k_BNTH.mT * scale).float(), soft_cap).masked_fill(
        ~seen, float("-inf")
    )
    if sinks_N is not None:
        sinks_BNS1 = sinks_N.float().view(1, -1, 1, 1).expand(*scores_BNST.shape[:3], 1)
        scores_BNST = torch.cat([scores_BNST, sinks_BNS1], dim=-1)
    shares_BNST = scores_BNST.softmax(-1)[..., :keys].type_as(v_BNTH)
    return shares_BNST @ v_BNTH


def soft_capped(values: Tensor, soft_cap: float | None) -> Tensor:
    """Values that approach +-soft_cap and never exceed it."""
    return values if soft_cap is None else soft_cap * torch.tanh(values / soft_cap)


def end_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Which keys the last `queries` tokens of a row may see: for an accelerator's kernels in words, else as bools [S, T]."""
    if is_accelerator(device):
        # by name: it imports torch's compiler, which takes seconds
        in_words: Tensor = import_module("torch.nn.attention.bias").causal_lower_right(
            queries, keys
        )
        return in_words
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def block_mask(
    build: Callable[..., Any],
    mask: Mask,
    queries: int,
    keys: int,
    documents_BT: Tensor | None,
    device: torch.device,
) -> Any:
    """The mask as flex_attention takes it, which `build` makes: which blocks of scores are to be computed."""
    first, rows = (
        keys - queries,
        None if documents_BT is None or not mask.documents else documents_BT.size(0),
    )

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask.sees(row, query + first, key, documents_BT)

    return build(sees, rows, None, queries, keys, device=device)


@cache
def compiled_flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """torch's flex_attention and create_block_mask, compiled: uncompiled they write every score and its mask out."""
    # by name: it imports torch's compiler, which takes seconds
    module = import_module("torch.nn.attention.flex_attention")
    return torch.compile(module.flex_attention), torch.compile(module.create_block_mask)


class EverythingSeen(nn.Module):
    """Attention without a mask: each token sees all of its row, what is behind it too."""

    def forward(
        self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor, seen: None, sinks_N: None = None
    ) -> Tensor:
        """Gives [B, N, S, H]; the last two are what every back end is called with."""
        return F.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH)


BACKENDS: dict[str, type[SdpaAttention]] = {
    "sdpa": SdpaAttention,
    "flex": FlexAttention,
    "varlen": VarlenAttention,
}


def attention_backend(
    config: AttentionConfig,
    *,
    window: int | None = None,
    block: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> SdpaAttention:
    """The back end that the config names, for a layer.

    Args:
        config: names the back end, and whether documents see each other.
        window: keys that a query sees at most.
        block: tokens of the blocks that rows are cut into, which do not see each other.
        scale: of the scores; H^-0.5 where it is None.
        soft_cap: of the scores; None: none.
    """
    mask = Mask(documents=config.mask == "block_causal", window=window, block=block)
    return BACKENDS[config.backend](mask, scale=scale, soft_cap=soft_cap)
