"""The skeleton that the decoder-only families share: embedding, layers, final norm, output head.

Shapes: B batch, T tokens of a row, D model width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder_layer import NewNorm
from titanrun.models.shared.initialization import normal_, truncated_normal_
from titanrun.models.shared.masks import Mask


class DecoderSizes(Protocol):
    """What the skeleton reads of a family's config."""

    vocab_size: Any
    dim: Any
    n_layers: Any
    norm_eps: Any
    tie_word_embeddings: Any

    @property
    def init(self) -> DecoderInitConfig: ...


class Decoder(nn.Module):
    """Token ids to logits of the next token. A family gives the layers and the RoPE table.

    Build it on the meta device, allocate with `to_empty`, then call `init_weights`, which also fills the RoPE table. A layer is
    called with the stream [B, T, D], with what `rope_rows` makes of the table, and with the mask in the form that the back end of its
    attention takes, which is its part `attention.backend`; it has `init_weights(init, into_stream_std=..., generator=...)`.
    """

    tok_embeddings: nn.Embedding | None
    norm: nn.Module | None
    output: nn.Linear | None
    rope_table: Tensor

    def __init__(
        self,
        config: DecoderSizes,
        layers: Sequence[nn.Module],
        *,
        seq_len: int,
        new_norm: NewNorm = nn.RMSNorm,
    ) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(index): layer for index, layer in enumerate(layers)})
        self.norm = new_norm(config.dim, eps=config.norm_eps)
        self.output = output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.register_buffer(
            "rope_table", self.new_rope_table(output.weight.device), persistent=False
        )
        self.tie_weights()

    def new_rope_table(self, device: torch.device) -> Tensor:
        """The RoPE table, one row a position; on the meta device only its shape."""
        raise NotImplementedError

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """What the layers need of the table for rows of `seq_len` tokens."""
        raise NotImplementedError

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V] in the compute dtype. Positions are [1, T] or [B, T], and 0 to T - 1 where absent. `documents_BT` numbers the
        documents of whole rows, also where ranks share them; it is absent where a row is one.

        A pipeline stage has not all of the parts: it takes the stream [B, T, D] where the embedding is None, and gives the stream
        where the output head is.
        """
        h_BTD = tokens_BT if self.tok_embeddings is None else self.tok_embeddings(tokens_BT)
        told = self.telling(tokens_BT, positions_BT, documents_BT)
        normed_BTD = self.stream(h_BTD, told)
        return normed_BTD if self.output is None else self.logits(normed_BTD)

    def telling(
        self, tokens_BT: Tensor, positions_BT: Tensor | None, documents_BT: Tensor | None
    ) -> Callable[[Any], tuple[Any, Any]]:
        """What gives a layer, beside the stream, its rows of the RoPE table and its mask. Layers of one mask share it."""
        rope = self.rope_rows(tokens_BT.size(1), positions_BT)
        # a later stage may be given a piece of the stream only
        length = (tokens_BT if positions_BT is None else positions_BT).size(1)
        seen: dict[Mask, Any] = {}

        def told(layer: Any) -> tuple[Any, Any]:
            backend = layer.attention.backend
            if backend.mask not in seen:
                seen[backend.mask] = backend.seen(length, documents_BT, device=tokens_BT.device)
            return rope, seen[backend.mask]

        return told

    def trunk(self) -> Iterable[nn.Module]:
        """The layers that the next token is predicted with."""
        return self.layers.values()

    def stream(self, h_BTD: Tensor, told: Callable[[Any], tuple[Any, Any]]) -> Tensor:
        """The stream behind these, normalised on a rank that has the final norm."""
        for layer in self.trunk():
            h_BTD = layer(h_BTD, *told(layer))
        return h_BTD if self.norm is None else self.norm(h_BTD)

    def logits(self, normed_BTD: Tensor) -> Tensor:
        """Logits [B, T, V] of the normalised stream, on a rank that has the output head."""
        assert self.output is not None
        logits_BTV: Tensor = self.output(normed_BTD)
        return logits_BTV

    def tie_weights(self) -> None:
        """Let the output head use the embedding's matrix, if the config says so; `to_empty` separates them.

        A pipeline rank that has one of the two has both, and only its stages lack one.
        """
        if (
            self.config.tie_word_embeddings
            and self.output is not None
            and self.tok_embeddings is not None
        ):
            self.output.weight = self.tok_embeddings.weight

    def init_weights(self, generator: Generator | None = None) -> None:
        """Fill every parameter and the RoPE table. A tied matrix is drawn as the output head."""
        init = self.config.init
        self.tie_weights()
        self.rope_table = self.new_rope_table(self.rope_table.device)
        if self.tok_embeddings is not None and not self.config.tie_word_embeddings:
            normal_(self.tok_embeddings.weight, std=init.embedding_std, generator=generator)
        for layer, block in self.layers.items():
            block.init_weights(
                init, into_stream_std=self.into_stream_std(int(layer)), generator=generator
            )
        if self.norm is not None:
            self.norm.reset_parameters()
        if self.output is not None:
            output_bound = init.output_truncation_stds * init.output_std
            truncated_normal_(
                self.output.weight, std=init.output_std, bound=output_bound, generator=generator
            )

    def into_stream_std(self, layer: int) -> float:
        """Std of what adds to the residual stream: falls with the depth, so that the stream's variance does not grow with it."""
        init = self.config.init
        depth = layer + 1 if init.depth_scaling == "layer" else self.config.n_layers
        return init.linear_std / math.sqrt(2 * depth)
