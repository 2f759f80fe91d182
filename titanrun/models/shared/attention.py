"""Attention back ends: from queries, keys and values to what each token gathers.

Shapes: B batch, T tokens of a row, S tokens of its end, N query heads, K key and value heads (N is a multiple of K), H head width.
"""

from importlib import import_module

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.device import is_accelerator
from titanrun.models.shared.config import AttentionConfig, refused_attention

# fastest first; torch falls through to the first that takes the device, dtype and shapes
KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class SdpaAttention(nn.Module):
    """Causal attention by torch's scaled_dot_product_attention, scores scaled by H^-0.5. The queries are those of a row's end."""

    def forward(self, q_BNSH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
        grouped = q_BNSH.size(1) != k_BKTH.size(1)
        whole = q_BNSH.size(2) == k_BKTH.size(2)
        mask = None if whole else end_mask(q_BNSH.size(2), k_BKTH.size(2), q_BNSH.device)
        with sdpa_kernel(KERNELS, set_priority=True):
            return F.scaled_dot_product_attention(q_BNSH, k_BKTH, v_BKTH, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


def end_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Which keys the last `queries` tokens of a row may see: for an accelerator's kernels in words, else as bools [S, T]."""
    if is_accelerator(device):
        # by name: it imports torch's compiler, which takes seconds
        in_words: Tensor = import_module("torch.nn.attention.bias").causal_lower_right(queries, keys)
        return in_words
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


BACKENDS: dict[str, type[nn.Module]] = {"sdpa": SdpaAttention}


def attention_backend(config: AttentionConfig) -> nn.Module:
    """The back end that the config names: forward(q [B,N,S,H], k [B,K,T,H], v [B,K,T,H]) -> [B,N,S,H].

    Raises ProblemsFound for a back end, or a mask with it, that cannot run.
    """
    problem = refused_attention(config)
    if problem is not None:
        raise ProblemsFound([problem])
    return BACKENDS[config.backend]()
