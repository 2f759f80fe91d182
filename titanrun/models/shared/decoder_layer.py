"""Layer of most decoder-only families: attention, then a feed-forward part.

Each part reads the normalized residual stream and adds to it.

Shapes: B batch, T tokens of a sequence, D model width.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

from torch import Generator, Tensor, nn

from titanrun.config.types import OrAuto
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto

NORM_NAMES = ("attention_norm", "ffn_norm")
POST_NORM_NAMES = ("attention_post_norm", "ffn_post_norm")
Norm: TypeAlias = nn.RMSNorm | nn.LayerNorm
NormFactory = Callable[..., Norm]
"""Function from width and `eps` to a norm of the stream."""


class LayerSizes(Protocol):
    """Config fields that a layer reads."""

    @property
    def dim(self) -> OrAuto[int]:
        """Width of the residual stream."""

    @property
    def norm_eps(self) -> OrAuto[float]:
        """Epsilon of the norms."""


class LayerPart(Protocol):
    """Module that initializes its weights: a layer, or its attention or feed-forward part."""

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights. `residual_std` is for weights into the residual stream."""


class DecoderLayer(nn.Module):
    """One decoder layer.

    Its feed-forward part is `feed_forward` or `moe`, as in checkpoints. Attention and feed-forward
    part have `init_weights(init, residual_std=..., generator=...)`.

    Args:
        config: the sizes.
        attention: the first part.
        feed_forward: the second part of a dense layer.
        moe: the second part of a layer with experts.
        norm_factory: builds the norms.
        has_post_norms: whether the outputs of the parts are normalized too before they are added to
            the stream.
    """

    attention: nn.Module
    feed_forward: nn.Module
    moe: nn.Module
    attention_norm: Norm
    ffn_norm: Norm
    attention_post_norm: Norm
    ffn_post_norm: Norm

    def __init__(
        self,
        config: LayerSizes,
        *,
        attention: nn.Module,
        feed_forward: nn.Module | None = None,
        moe: nn.Module | None = None,
        norm_factory: NormFactory = nn.RMSNorm,
        has_post_norms: bool = False,
    ) -> None:
        super().__init__()
        assert (feed_forward is None) != (moe is None), "a layer is dense or has experts"
        self.attention = attention
        if feed_forward is not None:
            self.feed_forward = feed_forward
        if moe is not None:
            self.moe = moe
        self.norm_names = [*NORM_NAMES, *(POST_NORM_NAMES if has_post_norms else ())]
        for name in self.norm_names:
            self.add_module(
                name, norm_factory(unwrap_auto(config.dim), eps=unwrap_auto(config.norm_eps))
            )
        self.has_experts = moe is not None
        self.has_post_norms = has_post_norms

    def get_hidden_part(self) -> nn.Module:
        """Return the feed-forward part: dense, or a mixture of experts."""
        return self.moe if self.has_experts else self.feed_forward

    def forward(self, x_BTD: Tensor, rope: Tensor, mask: Any) -> Tensor:
        """Return the stream [B, T, D] after the layer.

        `rope` and `mask` are arguments of the attention.
        """
        added_BTD: Tensor = self.attention(self.attention_norm(x_BTD), rope, mask)
        h_BTD = x_BTD + (self.attention_post_norm(added_BTD) if self.has_post_norms else added_BTD)
        added_BTD = self.get_hidden_part()(self.ffn_norm(h_BTD))
        return h_BTD + (self.ffn_post_norm(added_BTD) if self.has_post_norms else added_BTD)

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights. `residual_std` is for weights into the residual stream."""
        for name in self.norm_names:
            getattr(self, name).reset_parameters()
        for part in (self.attention, self.get_hidden_part()):
            cast(LayerPart, part).init_weights(init, residual_std=residual_std, generator=generator)
