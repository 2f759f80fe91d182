"""SwiGLU feed-forward layer (https://arxiv.org/abs/2002.05202).

Shapes: B batch, T tokens of a row, D model width, F hidden width.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class FeedForward(nn.Module):
    """w2(silu(w1 x) * w3 x), without biases."""

    def __init__(self, *, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.silu(self.w1(x_BTD)) * self.w3(x_BTD)
        return self.w2(h_BTF)
