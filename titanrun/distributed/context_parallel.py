"""Context parallelism: every part of a model but attention works on this rank's share of each row; attention sees the whole row.

Either all ranks gather the keys and values (https://arxiv.org/abs/2407.21783, section 3.3.2), or ranks exchange tokens for heads
(https://arxiv.org/abs/2309.14509).

Shapes: B rows, T tokens of a row, t tokens of this rank's share of it, N query heads, K key and value heads, n heads of any kind,
m heads of one rank, H head width.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

from titanrun.config.problems import fail
from titanrun.distributed.fsdp import parts_of
from titanrun.distributed.rows import RowSharing

Method = Literal["allgather", "alltoall"]

# torch 2.13 renamed it
all_gather = (
    getattr(collectives, "all_gather_single_autograd", None)
    or collectives.all_gather_tensor_autograd
)


class GatheredKeys(nn.Module):
    """Each rank computes its own queries, with the keys and values of the whole row up to them; their gradients are summed back."""

    def __init__(self, inner: Any, rows: RowSharing) -> None:
        super().__init__()
        self.inner = inner
        self.rows = rows

    @property
    def mask(self) -> Any:
        """What a query may see of a whole row."""
        return self.inner.mask

    def seen(self, tokens: int, documents_BT: Tensor | None, *, device: torch.device) -> list[Any]:
        """The mask of each of this rank's pieces; `tokens` are its share of a row."""
        length, masks = tokens // self.rows.pieces, []
        for end in (length * (index + 1) for index in self.rows.own_pieces):
            documents = None if documents_BT is None else documents_BT[:, :end]
            masks.append(self.inner.seen(length, documents, device=device, keys=end))
        return masks

    def forward(
        self,
        q_BNtH: Tensor,
        k_BKtH: Tensor,
        v_BKtH: Tensor,
        seen: list[Any],
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        # together: one collective instead of two
        shares = all_gather(torch.cat([k_BKtH, v_BKtH], dim=-1), 0, self.rows.group).chunk(
            self.rows.ranks
        )
        k_BKTH, v_BKTH = self.rows.in_order(shares, dim=2).split(
            [k_BKtH.size(-1), v_BKtH.size(-1)], dim=-1
        )
        outs = []
        for index, piece, mask in zip(
            self.rows.own_pieces, q_BNtH.chunk(self.rows.pieces, dim=2), seen, strict=True
        ):
            # keys after the piece are masked anyway: leaving them out is what makes two pieces a rank an even share
            end = (index + 1) * piece.size(2)
            outs.append(self.inner(piece, k_BKTH[:, :, :end], v_BKTH[:, :, :end], mask, sinks_N))
        return torch.cat(outs, dim=2)


class GatheredRows(nn.Module):
    """Each rank computes its own queries, with the keys and values of the whole row, which come in the order of the ranks."""

    def __init__(self, inner: nn.Module, rows: RowSharing) -> None:
        super().__init__()
        self.inner = inner
        self.rows = rows

    def forward(self, q_BNtH: Tensor, k_BKtH: Tensor, v_BKtH: Tensor, seen: None) -> Tensor:
        shares = all_gather(torch.cat([k_BKtH, v_BKtH], dim=-1), 0, self.rows.group).chunk(
            self.rows.ranks
        )
        k_BKTH, v_BKTH = torch.cat(shares, dim=2).split([k_BKtH.size(-1), v_BKtH.size(-1)], dim=-1)
        out_BNtH: Tensor = self.inner(q_BNtH, k_BKTH, v_BKTH, seen)
        return out_BNtH


class ExchangedHeads(nn.Module):
    """Each rank computes the whole row for its part of the heads, and gives each rank's tokens back to it."""

    def __init__(self, inner: Any, rows: RowSharing) -> None:
        super().__init__()
        self.inner = inner
        self.rows = rows

    @property
    def mask(self) -> Any:
        """What a query may see of a whole row."""
        return self.inner.mask

    def seen(self, tokens: int, documents_BT: Tensor | None, *, device: torch.device) -> Any:
        """The mask of whole rows, of which `tokens` are this rank's share."""
        return self.inner.seen(tokens * self.rows.ranks, documents_BT, device=device)

    def forward(
        self,
        q_BNtH: Tensor,
        k_BKtH: Tensor,
        v_BKtH: Tensor,
        seen: Any,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        own_sinks = (
            None if sinks_N is None else sinks_N.chunk(self.rows.ranks)[self.rows.group.rank()]
        )
        out_BmTH = self.inner(
            *(self.tokens_for_heads(share) for share in (q_BNtH, k_BKtH, v_BKtH)), seen, own_sinks
        )
        return self.heads_for_tokens(out_BmTH)

    def tokens_for_heads(self, share_BntH: Tensor) -> Tensor:
        """From all heads of this rank's tokens to this rank's heads of all tokens."""
        arrived = self.exchange(torch.cat(share_BntH.chunk(self.rows.ranks, dim=1)))
        return self.rows.in_order(arrived.chunk(self.rows.ranks), dim=2)

    def heads_for_tokens(self, whole_BmTH: Tensor) -> Tensor:
        """From this rank's heads of all tokens to all heads of this rank's tokens."""
        shares = [self.rows.share(whole_BmTH, rank=rank, dim=2) for rank in range(self.rows.ranks)]
        return torch.cat(self.exchange(torch.cat(shares)).chunk(self.rows.ranks), dim=1)

    def exchange(self, parts: Tensor) -> Tensor:
        """Sends the r-th part along the first dim to rank r; gives what the ranks sent, in their order."""
        return collectives.all_to_all_single_autograd(parts, None, None, self.rows.group)


METHODS: dict[Method, type[GatheredKeys] | type[ExchangedHeads]] = {
    "allgather": GatheredKeys,
    "alltoall": ExchangedHeads,
}


def share_rows(
    model: nn.Module, rows: RowSharing, method: Method, *, attention: tuple[type[nn.Module], ...]
) -> None:
    """Lets the attention of a model, or of a pipeline stage, see whole rows where its other parts see this rank's share.

    Args:
        model: whose attention is one of the modules `attention`: forward(q, k, v, seen, sinks), the queries those of the last keys.
        rows: how they are shared.
        method: how attention gets to see them.
        attention: kinds of modules.

    Raises ProblemsFound where a layer has no such attention: it would see a share and nobody would tell.
    """
    for layer in parts_of(model)[1]:
        places = [
            (parent, name)
            for parent in layer.modules()
            for name, child in parent.named_children()
            if isinstance(child, attention)
        ]
        if not places:
            message = f"{type(model).__name__} has layers whose attention cannot reach beyond this rank's share of a row"
            path = ("parallelism", "context_parallel_degree")
            raise fail(
                "conflict",
                message,
                path=path,
                help="set it to 1, or build the model on titanrun's attention back ends",
            )
        for parent, name in places:
            setattr(parent, name, reaching_rows(parent.get_submodule(name), rows, method))


def reaching_rows(inner: nn.Module, rows: RowSharing, method: Method) -> nn.Module:
    """Attention that sees whole rows around one that computes them; one without a mask asks for no order of the keys."""
    if method == "allgather" and not hasattr(inner, "mask"):
        return GatheredRows(inner, rows)
    return METHODS[method](inner, rows)
