"""Attention back ends by name."""

from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.flex_attention import FlexAttention
from titanrun.models.shared.sdpa_attention import SdpaAttention
from titanrun.models.shared.varlen_attention import VarlenAttention

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
