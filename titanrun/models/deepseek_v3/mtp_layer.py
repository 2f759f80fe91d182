"""Multi-token prediction layer of DeepSeek-V3.

It comes after the last layer and predicts one later token (https://arxiv.org/abs/2412.19437,
section 2.2).

Shapes: B batch, T tokens of a sequence, D model width.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.deepseek_v3.config import MTP_NORM_NAMES
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.decoder_layer import DecoderLayer, LayerSizes, Norm
from titanrun.models.shared.weight_init import truncated_normal_


class MTPLayer(DecoderLayer):
    """Decoder layer for multi-token prediction of one more token.

    It joins the head's input of the previous depth with the embedding of the token that is known
    there, runs a decoder layer on it and normalizes the result for the same head. Embedding and
    head are the model's own. The embedding comes first in the join, as in DeepSeek's published
    weights. In the paper's formula it comes second.
    """

    is_training_only = True
    embedding_norm: Norm
    stream_norm: Norm
    out_norm: Norm

    def __init__(
        self,
        config: LayerSizes,
        *,
        attention: nn.Module,
        feed_forward: nn.Module | None = None,
        moe: nn.Module | None = None,
    ) -> None:
        super().__init__(config, attention=attention, feed_forward=feed_forward, moe=moe)
        dim, norm_eps = unwrap_auto(config.dim), unwrap_auto(config.norm_eps)
        for name in MTP_NORM_NAMES:
            self.add_module(name, nn.RMSNorm(dim, eps=norm_eps))
        self.norm_names += MTP_NORM_NAMES
        self.join = nn.Linear(2 * dim, dim, bias=False)

    # it needs the embedding too, and the model does not call it like the other layers
    def forward(  # type: ignore[override]
        self, before_BTD: Tensor, embedded_BTD: Tensor, rope: Tensor, mask: Any
    ) -> Tensor:
        """Return the head's input of this depth [B, T, D].

        The layer uses the positions of the previous depth.
        """
        both = [self.embedding_norm(embedded_BTD), self.stream_norm(before_BTD)]
        out_BTD: Tensor = self.out_norm(
            super().forward(self.join(torch.cat(both, dim=-1)), rope, mask)
        )
        return out_BTD

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights. `residual_std` is for weights into the residual stream."""
        super().init_weights(init, residual_std=residual_std, generator=generator)
        truncated_normal_(
            self.join.weight, std=init.linear_std, bound=init.truncation, generator=generator
        )
