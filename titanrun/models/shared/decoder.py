"""Base class of decoder-only families: embedding, layers, final norm, output head.

Shapes: B batch, T tokens of a sequence, D model width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Generator, Tensor, nn

from titanrun.config.types import OrAuto
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.decoder_layer import LayerPart, Norm, NormFactory
from titanrun.models.shared.weight_init import normal_, truncated_normal_


class DecoderSizes(Protocol):
    """Config fields that the base class reads."""

    @property
    def vocab_size(self) -> OrAuto[int]:
        """Number of tokens of the vocabulary."""

    @property
    def dim(self) -> OrAuto[int]:
        """Width of the residual stream."""

    @property
    def n_layers(self) -> OrAuto[int]:
        """Number of layers."""

    @property
    def norm_eps(self) -> OrAuto[float]:
        """Epsilon of the norms."""

    @property
    def tie_word_embeddings(self) -> OrAuto[bool]:
        """Whether the output head shares the embedding's matrix."""

    @property
    def init(self) -> DecoderInitConfig:
        """Standard deviations of the initial weights."""

    def output_dim(self) -> int:
        """Return the number of outputs per token."""


class Decoder(nn.Module):
    """Decoder from token ids to logits. A family provides the layers and the RoPE cache.

    Build it on the meta device, allocate with `to_empty`, then call `init_weights`, which also
    fills the RoPE cache. A layer is called with the stream [B, T, D], with the result of
    `select_rope_positions`, and with the mask that the back end of its attention,
    `attention.backend`, builds. It has a method `init_weights(init, residual_std=...,
    generator=...)`.
    """

    tok_embeddings: nn.Embedding | None
    norm: Norm | None
    output: nn.Linear | None
    rope_table: Tensor

    def __init__(
        self,
        config: DecoderSizes,
        layers: Sequence[nn.Module],
        *,
        seq_len: int,
        norm_factory: NormFactory = nn.RMSNorm,
    ) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        vocab_size, dim = unwrap_auto(config.vocab_size), unwrap_auto(config.dim)
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleDict({str(index): layer for index, layer in enumerate(layers)})
        self.norm = norm_factory(dim, eps=unwrap_auto(config.norm_eps))
        self.output = output = nn.Linear(dim, config.output_dim(), bias=False)
        self.register_buffer(
            "rope_table", self.build_rope_cache(output.weight.device), persistent=False
        )
        self.tie_weights()

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the RoPE cache, one row per position, with only a shape on the meta device."""
        raise NotImplementedError

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return the rows of the RoPE cache for sequences of `seq_len` tokens."""
        raise NotImplementedError

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
        document_starts_BM: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, T, V] in the compute dtype.

        Positions are [1, T] or [B, T], by default 0 to T - 1. `documents_BT` are the document ids
        of whole sequences, even if ranks share them. It is None if each sequence is one document.
        `document_starts_BM` are the columns at which they start, if the back end needs them. A
        pipeline stage lacks some modules: without the embedding it takes the stream [B, T, D], and
        without the output head it returns the stream.
        """
        h_BTD = tokens_BT if self.tok_embeddings is None else self.tok_embeddings(tokens_BT)
        get_layer_inputs = self.build_layer_inputs(
            tokens_BT, positions_BT, documents_BT, document_starts_BM
        )
        normed_BTD = self.forward_layers(h_BTD, get_layer_inputs)
        return normed_BTD if self.output is None else self.compute_logits(normed_BTD)

    def build_layer_inputs(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None,
        documents_BT: Tensor | None,
        document_starts_BM: Tensor | None = None,
    ) -> Callable[[Any], tuple[Any, Any]]:
        """Return a function from a layer to its RoPE rows and mask.

        Layers with equal masks share one.
        """
        rope = self.select_rope_positions(tokens_BT.size(1), positions_BT)
        # a later stage may receive only a part of the stream
        length = (tokens_BT if positions_BT is None else positions_BT).size(1)
        masks: dict[CausalMask, Any] = {}
        starts = {} if document_starts_BM is None else {"document_starts_BM": document_starts_BM}

        def get_layer_inputs(layer: Any) -> tuple[Any, Any]:
            backend = layer.attention.backend
            if backend.mask not in masks:
                masks[backend.mask] = backend.build_mask(
                    length, documents_BT, device=tokens_BT.device, **starts
                )
            return rope, masks[backend.mask]

        return get_layer_inputs

    def main_layers(self) -> Iterable[nn.Module]:
        """Return the layers that predict the next token."""
        return self.layers.values()

    def forward_layers(
        self, h_BTD: Tensor, get_layer_inputs: Callable[[Any], tuple[Any, Any]]
    ) -> Tensor:
        """Return the stream after the main layers, normalized if this rank has the final norm."""
        for layer in self.main_layers():
            h_BTD = layer(h_BTD, *get_layer_inputs(layer))
        return h_BTD if self.norm is None else self.norm(h_BTD)

    def compute_logits(self, normed_BTD: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the normalized stream.

        The rank must have the output head.
        """
        assert self.output is not None
        logits_BTV: Tensor = self.output(normed_BTD)
        return logits_BTV

    def tie_weights(self) -> None:
        """Tie the output head to the embedding if the config says so. `to_empty` separates them.

        A pipeline rank that has one of the two has both. Only its stages lack one.
        """
        if (
            self.config.tie_word_embeddings
            and self.output is not None
            and self.tok_embeddings is not None
        ):
            self.output.weight = self.tok_embeddings.weight

    def init_weights(self, generator: Generator | None = None) -> None:
        """Initialize every parameter and the RoPE cache.

        A tied matrix is drawn as the output head.
        """
        init = self.config.init
        self.tie_weights()
        self.rope_table = self.build_rope_cache(self.rope_table.device)
        if self.tok_embeddings is not None and not self.config.tie_word_embeddings:
            normal_(self.tok_embeddings.weight, std=init.embedding_std, generator=generator)
        for layer, block in self.layers.items():
            cast(LayerPart, block).init_weights(
                init, residual_std=self.compute_residual_std(int(layer)), generator=generator
            )
        if self.norm is not None:
            self.norm.reset_parameters()
        if self.output is not None:
            output_std = unwrap_auto(init.output_std)
            output_bound = init.output_truncation_stds * output_std
            truncated_normal_(
                self.output.weight, std=output_std, bound=output_bound, generator=generator
            )

    def compute_residual_std(self, layer: int) -> float:
        """Return the std of weights that add to the residual stream.

        It decreases with the depth, so that the variance of the stream does not grow with it.
        """
        init = self.config.init
        depth = layer + 1 if init.depth_scaling == "layer" else unwrap_auto(self.config.n_layers)
        return init.linear_std / math.sqrt(2 * depth)
