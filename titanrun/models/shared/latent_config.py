"""Sizes of multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1), and what follows from them."""

from typing import Any, Protocol

from titanrun.models.shared.config import RopeScalingConfig, decided
from titanrun.models.shared.decoder_config import Shapes


class LatentSizes(Protocol):
    """What a config says of it: the widths that queries, and keys with values, are compressed to; of a query or key the parts that RoPE
    leaves alone and turns; of a value."""

    q_lora_rank: Any
    kv_lora_rank: Any
    qk_nope_head_dim: Any
    qk_rope_head_dim: Any
    v_head_dim: Any


def query_width(latent: LatentSizes) -> int:
    """Width of the query, or key, of one head."""
    return int(decided(latent.qk_nope_head_dim) + decided(latent.qk_rope_head_dim))


def score_scale(latent: LatentSizes, scaling: RopeScalingConfig | None) -> float:
    """Factor on the products of queries and keys: width^-0.5, and what YaRN adds."""
    scale: float = query_width(latent) ** -0.5
    return scale if scaling is None else scale * scaling.score_factor()


def latent_shapes(latent: LatentSizes, *, dim: int, heads: int) -> Shapes:
    """Name and shape of every parameter of one layer's attention."""
    compressed, rank, queries = (
        decided(latent.kv_lora_rank),
        decided(latent.q_lora_rank),
        heads * query_width(latent),
    )
    shapes: Shapes = {"attention.wq.weight": (queries, dim)}
    if rank is not None:
        shapes = {
            "attention.wq_a.weight": (rank, dim),
            "attention.q_norm.weight": (rank,),
            "attention.wq_b.weight": (queries, rank),
        }
    return shapes | {
        "attention.wkv_a.weight": (compressed + decided(latent.qk_rope_head_dim), dim),
        "attention.kv_norm.weight": (compressed,),
        "attention.wkv_b.weight": (
            heads * (decided(latent.qk_nope_head_dim) + decided(latent.v_head_dim)),
            compressed,
        ),
        "attention.wo.weight": (dim, heads * decided(latent.v_head_dim)),
    }


def kept_by_latent_attention(latent: LatentSizes, *, heads: int) -> int:
    """Queries and keys before and after RoPE, values, and the output as the kernel gives it and as the projection takes it. Compressed
    queries, keys and values are a few heads' width."""
    return heads * (3 * query_width(latent) + 4 * int(decided(latent.v_head_dim)))


def latent_key_value_width(latent: LatentSizes, *, heads: int) -> int:
    """Width of the keys of all heads, plus that of the values: ranks send each other what is no longer compressed."""
    return heads * (query_width(latent) + int(decided(latent.v_head_dim)))
