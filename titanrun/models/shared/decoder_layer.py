"""The layer that most decoder-only families share: attention, then a hidden part, each on the normalised stream and added to it.

Shapes: B batch, T tokens of a row, D model width.
"""

from typing import Any, Protocol

from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig


class LayerSizes(Protocol):
    """What a layer reads of a family's config."""

    dim: Any
    norm_eps: Any


class DecoderLayer(nn.Module):
    """One decoder layer. Its hidden part is `feed_forward` or `moe`, by its name in checkpoints.

    Attention and hidden part have `init_weights(init, into_stream_std=..., generator=...)`.
    """

    def __init__(self, config: LayerSizes, *, attention: nn.Module, feed_forward: nn.Module | None = None, moe: nn.Module | None = None):
        super().__init__()
        assert (feed_forward is None) != (moe is None), "a layer is dense or has experts"
        self.attention = attention
        if moe is None:
            self.feed_forward = feed_forward
        else:
            self.moe = moe
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.has_experts = moe is not None

    def forward(self, x_BTD: Tensor, rope: Tensor, seen: Any) -> Tensor:
        """The stream after the layer; `rope` and `seen`, the mask, are what the attention takes."""
        h_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rope, seen)
        hidden = self.moe if self.has_experts else self.feed_forward
        return h_BTD + hidden(self.ffn_norm(h_BTD))

    def init_weights(self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None) -> None:
        """Draw the layer's weights; `into_stream_std` is the std of what adds to the residual stream."""
        self.attention_norm.reset_parameters()
        self.ffn_norm.reset_parameters()
        for part in (self.attention, self.moe if self.has_experts else self.feed_forward):
            part.init_weights(init, into_stream_std=into_stream_std, generator=generator)
