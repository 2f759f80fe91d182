"""Attention back ends: from queries, keys and values to what each token gathers.

Shapes: B batch, T tokens of a row, N query heads, K key and value heads (N is a multiple of K), H head width.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.config import AttentionConfig, refused_attention

# fastest first; torch falls through to the first that takes the device, dtype and shapes
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class SdpaAttention(nn.Module):
    """Causal attention by torch's scaled_dot_product_attention, scores scaled by H^-0.5."""

    def forward(self, q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
        grouped = q_BNTH.size(1) != k_BKTH.size(1)
        with sdpa_kernel(KERNELS, set_priority=True):
            return F.scaled_dot_product_attention(q_BNTH, k_BKTH, v_BKTH, is_causal=True, enable_gqa=grouped)


BACKENDS: dict[str, type[nn.Module]] = {"sdpa": SdpaAttention}


def attention_backend(config: AttentionConfig) -> nn.Module:
    """The back end that the config names: forward(q [B,N,T,H], k [B,K,T,H], v [B,K,T,H]) -> [B,N,T,H].

    Raises ProblemsFound for a back end, or a mask with it, that cannot run.
    """
    problem = refused_attention(config)
    if problem is not None:
        raise ProblemsFound([problem])
    return BACKENDS[config.backend]()
