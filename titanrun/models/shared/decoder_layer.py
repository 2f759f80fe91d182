"""The layer that most decoder-only families share: attention, then a hidden part, each on the normalised stream and added to it.

Shapes: B batch, T tokens of a row, D model width.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig

NewNorm = Callable[..., nn.Module]
"""Makes a norm of the stream from its width and `eps`."""


class LayerSizes(Protocol):
    """What a layer reads of a family's config."""

    dim: Any
    norm_eps: Any


class DecoderLayer(nn.Module):
    """One decoder layer. Its hidden part is `feed_forward` or `moe`, by its name in checkpoints.

    Attention and hidden part have `init_weights(init, into_stream_std=..., generator=...)`.

    Args:
        config: the sizes.
        attention: its first part.
        feed_forward: its second, or
        moe: its second.
        new_norm: makes the norms.
        post_norms: whether what the parts give is normalised too before it is added to the stream.
    """

    def __init__(
        self,
        config: LayerSizes,
        *,
        attention: nn.Module,
        feed_forward: nn.Module | None = None,
        moe: nn.Module | None = None,
        new_norm: NewNorm = nn.RMSNorm,
        post_norms: bool = False,
    ) -> None:
        super().__init__()
        assert (feed_forward is None) != (moe is None), "a layer is dense or has experts"
        self.attention = attention
        if moe is None:
            self.feed_forward = feed_forward
        else:
            self.moe = moe
        self.norm_names = [
            "attention_norm",
            "ffn_norm",
            *(["attention_post_norm", "ffn_post_norm"] if post_norms else []),
        ]
        for name in self.norm_names:
            self.add_module(name, new_norm(config.dim, eps=config.norm_eps))
        self.has_experts = moe is not None
        self.post_norms = post_norms

    def forward(self, x_BTD: Tensor, rope: Tensor, seen: Any) -> Tensor:
        """The stream after the layer; `rope` and `seen`, the mask, are what the attention takes."""
        added_BTD = self.attention(self.attention_norm(x_BTD), rope, seen)
        h_BTD = x_BTD + (self.attention_post_norm(added_BTD) if self.post_norms else added_BTD)
        added_BTD = (self.moe if self.has_experts else self.feed_forward)(self.ffn_norm(h_BTD))
        return h_BTD + (self.ffn_post_norm(added_BTD) if self.post_norms else added_BTD)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the layer's weights; `into_stream_std` is the std of what adds to the residual stream."""
        for name in self.norm_names:
            getattr(self, name).reset_parameters()
        for part in (self.attention, self.moe if self.has_experts else self.feed_forward):
            part.init_weights(init, into_stream_std=into_stream_std, generator=generator)
