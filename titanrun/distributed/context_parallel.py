"""Context parallelism: ranks hold parts of each sequence, attention covers all of it.

All modules except attention work on the local part. For attention, either all ranks gather the keys
and values (https://arxiv.org/abs/2407.21783, section 3.3.2), or ranks exchange tokens for heads
(https://arxiv.org/abs/2309.14509).

Shapes: B batch, T tokens of a sequence, t local tokens of this rank, N query heads, K key and value
heads, n heads of any kind, m heads of one rank, H head width.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

from titanrun.config.problems import problem_error
from titanrun.distributed.context_parallel_layout import SequenceSharding
from titanrun.distributed.model_parts import get_model_parts

ContextParallelMethod = Literal["allgather", "alltoall"]

# renamed in torch 2.13
all_gather = (
    getattr(collectives, "all_gather_single_autograd", None)
    or collectives.all_gather_tensor_autograd
)


class AllGatherKVAttention(nn.Module):
    """Attention of local queries over all-gathered keys and values.

    Each chunk of queries sees the keys up to its end. The backward pass reduce-scatters the
    gradients of keys and values.
    """

    def __init__(self, inner: Any, sharding: SequenceSharding) -> None:
        super().__init__()
        self.inner = inner
        self.sharding = sharding

    @property
    def mask(self) -> Any:
        """Mask of the inner attention, for whole sequences."""
        return self.inner.mask

    def build_mask(
        self, num_queries: int, documents_BT: Tensor | None, *, device: torch.device
    ) -> list[Any]:
        """Return one mask per local chunk. `num_queries` counts the local tokens of a sequence."""
        length, masks = num_queries // self.sharding.chunks_per_rank, []
        for end in (length * (index + 1) for index in self.sharding.local_chunks):
            documents = None if documents_BT is None else documents_BT[:, :end]
            masks.append(self.inner.build_mask(length, documents, device=device, num_keys=end))
        return masks

    def forward(
        self,
        q_BNtH: Tensor,
        k_BKtH: Tensor,
        v_BKtH: Tensor,
        masks: list[Any],
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Return the local output [B, N, t, H]. Collective over cp: all ranks must call this."""
        # keys and values together: one collective instead of two
        shares = all_gather(torch.cat([k_BKtH, v_BKtH], dim=-1), 0, self.sharding.group).chunk(
            self.sharding.cp_size
        )
        k_BKTH, v_BKTH = self.sharding.unshard(shares, dim=2).split(
            [k_BKtH.size(-1), v_BKtH.size(-1)], dim=-1
        )
        outs = []
        for index, piece, mask in zip(
            self.sharding.local_chunks,
            q_BNtH.chunk(self.sharding.chunks_per_rank, dim=2),
            masks,
            strict=True,
        ):
            # keys after the chunk are masked anyway: leaving them out makes two chunks per
            # rank equal work
            end = (index + 1) * piece.size(2)
            outs.append(self.inner(piece, k_BKTH[:, :, :end], v_BKTH[:, :, :end], mask, sinks_N))
        return torch.cat(outs, dim=2)


class AllGatherSequence(nn.Module):
    """Attention without a mask of local queries over all-gathered keys and values.

    Keys and values are in the order of the ranks.
    """

    def __init__(self, inner: nn.Module, sharding: SequenceSharding) -> None:
        super().__init__()
        self.inner = inner
        self.sharding = sharding

    def forward(self, q_BNtH: Tensor, k_BKtH: Tensor, v_BKtH: Tensor, mask: None) -> Tensor:
        """Return the local output [B, N, t, H]. Collective over cp: all ranks must call this."""
        shares = all_gather(torch.cat([k_BKtH, v_BKtH], dim=-1), 0, self.sharding.group).chunk(
            self.sharding.cp_size
        )
        k_BKTH, v_BKTH = torch.cat(shares, dim=2).split([k_BKtH.size(-1), v_BKtH.size(-1)], dim=-1)
        out_BNtH: Tensor = self.inner(q_BNtH, k_BKTH, v_BKTH, mask)
        return out_BNtH


class UlyssesAttention(nn.Module):
    """Attention over whole sequences for this rank's part of the heads.

    All-to-all collectives exchange tokens for heads before, and heads for tokens after.
    """

    def __init__(self, inner: Any, sharding: SequenceSharding) -> None:
        super().__init__()
        self.inner = inner
        self.sharding = sharding

    @property
    def mask(self) -> Any:
        """Mask of the inner attention, for whole sequences."""
        return self.inner.mask

    def build_mask(
        self,
        num_queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        **starts: Tensor,
    ) -> Any:
        """Return the mask of whole sequences. `num_queries` counts local tokens of a sequence."""
        return self.inner.build_mask(
            num_queries * self.sharding.cp_size, documents_BT, device=device, **starts
        )

    def forward(
        self,
        q_BNtH: Tensor,
        k_BKtH: Tensor,
        v_BKtH: Tensor,
        mask: Any,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Return the local output [B, N, t, H]. Collective over cp: all ranks must call this."""
        own_sinks = (
            None
            if sinks_N is None
            else sinks_N.chunk(self.sharding.cp_size)[self.sharding.group.rank()]
        )
        out_BmTH = self.inner(
            *(self.exchange_tokens_for_heads(share) for share in (q_BNtH, k_BKtH, v_BKtH)),
            mask,
            own_sinks,
        )
        return self.exchange_heads_for_tokens(out_BmTH)

    def exchange_tokens_for_heads(self, share_BntH: Tensor) -> Tensor:
        """Exchange all heads of local tokens for local heads of all tokens, [B, m, T, H]."""
        arrived = self.all_to_all(torch.cat(share_BntH.chunk(self.sharding.cp_size, dim=1)))
        return self.sharding.unshard(arrived.chunk(self.sharding.cp_size), dim=2)

    def exchange_heads_for_tokens(self, whole_BmTH: Tensor) -> Tensor:
        """Exchange local heads of all tokens for all heads of local tokens, [B, n, t, H]."""
        shares = [
            self.sharding.shard_for_rank(whole_BmTH, rank=rank, dim=2)
            for rank in range(self.sharding.cp_size)
        ]
        return torch.cat(self.all_to_all(torch.cat(shares)).chunk(self.sharding.cp_size), dim=1)

    def all_to_all(self, parts: Tensor) -> Tensor:
        """Send the r-th part along dim 0 to rank r and return the received parts in rank order."""
        return collectives.all_to_all_single_autograd(parts, None, None, self.sharding.group)


ATTENTION_BY_METHOD: dict[
    ContextParallelMethod, type[AllGatherKVAttention] | type[UlyssesAttention]
] = {
    "allgather": AllGatherKVAttention,
    "alltoall": UlyssesAttention,
}


def apply_context_parallel(
    model: nn.Module,
    sharding: SequenceSharding,
    method: ContextParallelMethod,
    *,
    attention_classes: tuple[type[nn.Module], ...],
) -> None:
    """Make the attention of a model, or of a pipeline stage, cover whole sequences.

    All other modules see the local part of each sequence.

    Args:
        model: the model. Its attention modules have `forward(q, k, v, mask, sinks)`, in which the
            queries are those of the last keys.
        sharding: how the ranks share sequences.
        method: how attention gets whole sequences.
        attention_classes: types of the attention modules.

    Raises:
        ProblemsFound: if a layer has no such attention, since it would silently see a part only.
    """
    for layer in get_model_parts(model)[1]:
        places = [
            (parent, name)
            for parent in layer.modules()
            for name, child in parent.named_children()
            if isinstance(child, attention_classes)
        ]
        if not places:
            message = (
                f"{type(model).__name__} has layers whose attention cannot be extended "
                f"beyond the local part of a sequence"
            )
            path = ("parallelism", "context_parallel_degree")
            raise problem_error(
                "conflict",
                message,
                path=path,
                hint="set it to 1, or build the model on titanrun's attention back ends",
            )
        for parent, name in places:
            setattr(
                parent, name, wrap_attention_for_cp(parent.get_submodule(name), sharding, method)
            )


def wrap_attention_for_cp(
    inner: nn.Module, sharding: SequenceSharding, method: ContextParallelMethod
) -> nn.Module:
    """Wrap an attention module so that it covers whole sequences.

    Attention without a mask does not depend on the order of the keys.
    """
    if method == "allgather" and not hasattr(inner, "mask"):
        return AllGatherSequence(inner, sharding)
    return ATTENTION_BY_METHOD[method](inner, sharding)
