"""SwiGLU feed-forward layer (https://arxiv.org/abs/2002.05202).

Shapes: B batch, T tokens of a sequence, D model width, F hidden width.
"""

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.weight_init import truncated_normal_


class FeedForward(nn.Module):
    """Layer w2(silu(w1 x) * w3 x), in which each matrix has a bias if `bias` is set."""

    def __init__(self, *, dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.w2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the output [B, T, D]."""
        h_BTF = F.silu(self.w1(x_BTD)) * self.w3(x_BTD)
        out_BTD: Tensor = self.w2(h_BTF)
        return out_BTD

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights, with `residual_std` for w2 and w3. Biases become zero.

        w2 adds to the residual stream.
        """
        for linear, std in (
            (self.w1, init.linear_std),
            (self.w2, residual_std),
            (self.w3, residual_std),
        ):
            truncated_normal_(linear.weight, std=std, bound=init.truncation, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
