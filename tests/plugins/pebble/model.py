"""A decoder without attention.

Shapes: B rows, T tokens of a row, D model width, V vocabulary.
"""

import torch
from torch import Generator, Tensor, nn

from pebble.configs import MixerConfig
from titanrun.models.shared.weight_init import normal_


class MixerLayer(nn.Module):
    """Adds to each token what is made of it and of the mean of the tokens so far."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.own = nn.Linear(dim, dim, bias=False)
        self.past = nn.Linear(dim, dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The stream after the layer."""
        counts_T1 = torch.arange(1, x_BTD.size(1) + 1, device=x_BTD.device).unsqueeze(-1)
        mean_BTD = x_BTD.cumsum(1) / counts_T1
        return x_BTD + torch.relu(self.own(x_BTD) + self.past(mean_BTD))


class Mixer(nn.Module):
    """Token ids to logits of the next token, from parts with the names that titanrun lays out."""

    def __init__(self, config: MixerConfig, *, seq_len: int) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(int(config.vocab_size), config.dim)
        self.layers = nn.ModuleDict(
            {str(index): MixerLayer(config.dim) for index in range(config.n_layers)}
        )
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.output = nn.Linear(config.dim, int(config.vocab_size), bias=False)

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V]."""
        x_BTD = self.tok_embeddings(tokens_BT)
        for layer in self.layers.values():
            x_BTD = layer(x_BTD)
        return self.output(self.norm(x_BTD))

    def init_weights(self, generator: Generator | None = None) -> None:
        """Fills every parameter."""
        for name, weight in self.named_parameters():
            if name == "norm.weight":
                nn.init.ones_(weight)
            else:
                # every rank draws the whole matrix and keeps its shard: the same in all layouts
                normal_(weight, std=weight.size(-1) ** -0.5, generator=generator)
