"""The L2 norm of all gradients and clipping to it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """L2 norm over all gradients as one fp32 number on their device.

    Gradients in bf16 are summed in fp32: torch's own total norm would round it to three digits.
    """
    if all(gradient.dtype == torch.float32 for gradient in gradients):
        return get_total_norm(gradients, foreach=True)
    norms = torch._foreach_norm(list(gradients), 2.0, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_gradients(parameters: Sequence[Tensor], *, norm: Tensor, max_norm: float) -> None:
    """Scales the gradients by min(1, max_norm / (norm + 1e-6)), without waiting for the device."""
    clip_grads_with_norm_(parameters, max_norm, norm, foreach=True)
