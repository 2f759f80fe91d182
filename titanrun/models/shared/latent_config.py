"""Sizes of multi-head latent attention, and quantities that follow from them.

Described in https://arxiv.org/abs/2405.04434, section 2.1.
"""

from typing import Protocol

from titanrun.config.types import OrAuto
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder_config import Shapes
from titanrun.models.shared.rope_config import RopeScalingConfig


class LatentSizes(Protocol):
    """Config fields of latent attention."""

    @property
    def q_lora_rank(self) -> OrAuto[int] | None:
        """Width of compressed queries, None without compression."""

    @property
    def kv_lora_rank(self) -> OrAuto[int]:
        """Width of compressed keys and values."""

    @property
    def qk_nope_head_dim(self) -> OrAuto[int]:
        """Width of the part of a query or key without RoPE."""

    @property
    def qk_rope_head_dim(self) -> OrAuto[int]:
        """Width of the part of a query or key with RoPE."""

    @property
    def v_head_dim(self) -> OrAuto[int]:
        """Width of a value."""


def get_query_head_dim(latent: LatentSizes) -> int:
    """Return the width of the query, or key, of one head."""
    return int(unwrap_auto(latent.qk_nope_head_dim) + unwrap_auto(latent.qk_rope_head_dim))


def compute_attention_scale(latent: LatentSizes, scaling: RopeScalingConfig | None) -> float:
    """Return the factor on the products of queries and keys: width^-0.5, scaled by YaRN."""
    scale: float = get_query_head_dim(latent) ** -0.5
    return scale if scaling is None else scale * scaling.attention_score_scale()


def get_latent_attention_shapes(latent: LatentSizes, *, dim: int, heads: int) -> Shapes:
    """Return name and shape of every parameter of one layer's attention."""
    compressed, rank, queries = (
        unwrap_auto(latent.kv_lora_rank),
        unwrap_auto(latent.q_lora_rank),
        heads * get_query_head_dim(latent),
    )
    shapes: Shapes = {"attention.wq.weight": (queries, dim)}
    if rank is not None:
        shapes = {
            "attention.wq_a.weight": (rank, dim),
            "attention.q_norm.weight": (rank,),
            "attention.wq_b.weight": (queries, rank),
        }
    return shapes | {
        "attention.wkv_a.weight": (compressed + unwrap_auto(latent.qk_rope_head_dim), dim),
        "attention.kv_norm.weight": (compressed,),
        "attention.wkv_b.weight": (
            heads * (unwrap_auto(latent.qk_nope_head_dim) + unwrap_auto(latent.v_head_dim)),
            compressed,
        ),
        "attention.wo.weight": (dim, heads * unwrap_auto(latent.v_head_dim)),
    }


def count_latent_activation_elements(latent: LatentSizes, *, heads: int) -> int:
    """Return the elements that attention keeps per token.

    These are queries and keys before and after RoPE, values, and the output as the kernel returns
    it and as the projection takes it. Compressed queries, keys and values are small: as wide as a
    few heads.
    """
    return heads * (3 * get_query_head_dim(latent) + 4 * int(unwrap_auto(latent.v_head_dim)))


def get_latent_kv_dim(latent: LatentSizes, *, heads: int) -> int:
    """Return the width of keys plus values of all heads, which ranks exchange uncompressed."""
    return heads * (get_query_head_dim(latent) + int(unwrap_auto(latent.v_head_dim)))
