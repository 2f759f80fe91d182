"""A layer behind the last one that predicts one token further on: multi-token prediction of DeepSeek-V3
(https://arxiv.org/abs/2412.19437, section 2.2).

Shapes: B batch, T tokens of a row, D model width.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.deepseek_v3.config import FURTHER_NORMS
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder_layer import DecoderLayer, LayerSizes
from titanrun.models.shared.initialization import truncated_normal_


class FurtherLayer(DecoderLayer):
    """Joins what the head reads of the depth before with the embedding of the token that is known there, runs a decoder layer on it and
    normalises that for the same head. Embedding and head are the model's own.

    The embedding comes first in what is joined, as in DeepSeek's published weights; in the paper's formula it comes second.
    """

    is_for_training_alone = True

    def __init__(self, config: LayerSizes, **parts: nn.Module) -> None:
        super().__init__(config, **parts)  # type: ignore[arg-type]
        for name in FURTHER_NORMS:
            self.add_module(name, nn.RMSNorm(config.dim, eps=config.norm_eps))
        self.norm_names += FURTHER_NORMS
        self.join = nn.Linear(2 * config.dim, config.dim, bias=False)

    def forward(self, before_BTD: Tensor, embedded_BTD: Tensor, rope: Tensor, seen: Any) -> Tensor:  # type: ignore[override]
        """What the head reads of this depth. The layer sees the positions of the depth before."""
        both = [self.embedding_norm(embedded_BTD), self.stream_norm(before_BTD)]
        out_BTD: Tensor = self.out_norm(
            super().forward(self.join(torch.cat(both, dim=-1)), rope, seen)
        )
        return out_BTD

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the layer's weights; `into_stream_std` is the std of what adds to the residual stream."""
        super().init_weights(init, into_stream_std=into_stream_std, generator=generator)
        truncated_normal_(
            self.join.weight, std=init.linear_std, bound=init.truncation, generator=generator
        )
