"""SwiGLU feed-forward layer (https://arxiv.org/abs/2002.05202).

Shapes: B batch, T tokens of a row, D model width, F hidden width.
"""

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.initialization import truncated_normal_


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x), each with a bias where `bias` says so."""

    def __init__(self, *, dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.w2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.silu(self.w1(x_BTD)) * self.w3(x_BTD)
        return self.w2(h_BTF)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; w2, which adds to the residual stream, and w3 at `into_stream_std`. Biases become zero."""
        for linear, std in (
            (self.w1, init.linear_std),
            (self.w2, into_stream_std),
            (self.w3, into_stream_std),
        ):
            truncated_normal_(linear.weight, std=std, bound=init.truncation, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
