"""titanrun's own model code in vLLM, with vLLM's paged attention. Needs extra `vllm`.

Shapes: B sequences (1), X tokens of all sequences (concatenated), D model dimension, S queries, T
keys, N query heads, K key and value heads, H head dimension, W padded head dimension of a kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention

from titanrun.config.problems import problem_error
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.sdpa_attention import SdpaAttention

# kernels need multiples of this head dimension; zero padding does not change scores
WIDTH_UNIT = 32


class PagedAttention(nn.Module):
    """Attention back end over the concatenated tokens of all sequences, separated by vLLM.

    Args:
        inner: the layer's own back end.
        heads: query heads.
        kv_heads: key and value heads.
        width: head dimension.
        name: unique name of the layer.
        cache: vLLM's cache settings.
    """

    def __init__(
        self, inner: SdpaAttention, *, heads: int, kv_heads: int, width: int, name: str, cache: Any
    ) -> None:
        super().__init__()
        self.mask = inner.mask
        self.padding = -width % WIDTH_UNIT
        self.width = width
        self.paged = Attention(
            heads,
            width + self.padding,
            inner.scale or width**-0.5,
            num_kv_heads=kv_heads,
            cache_config=cache,
            per_layer_sliding_window=inner.mask.window,
            prefix=name,
        )

    def forward(
        self,
        q_BNSH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        mask: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Compute attention [B, N, S, H] with B = 1. `mask` is ignored: vLLM builds its own."""
        flat = (
            F.pad(tensor[0].transpose(0, 1), (0, self.padding)).flatten(1)
            for tensor in (q_BNSH, k_BKTH, v_BKTH)
        )
        out_XNW: Tensor = self.paged(*flat).unflatten(-1, (q_BNSH.size(1), -1))
        return out_XNW[..., : self.width].transpose(0, 1).unsqueeze(0)


def build_policy_class(build: Callable[[], Decoder]) -> type[nn.Module]:
    """Return the class of vLLM's model, around the decoder that `build` returns."""

    class Policy(nn.Module):
        """Model with vLLM's interface. `own` holds the decoder's weights by name."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            self.decoder = build()
            self.own: dict[str, Tensor] = self.decoder.state_dict()
            install_paged_attention(self.decoder, vllm_config.cache_config)

        def embed_input_ids(self, input_ids: Tensor) -> Tensor:
            """Embed tokens [X] as [X, D]."""
            assert self.decoder.tok_embeddings is not None
            stream_XD: Tensor = self.decoder.tok_embeddings(input_ids)
            return stream_XD

        def forward(
            self,
            input_ids: Tensor,
            positions: Tensor,
            intermediate_tensors: Any = None,
            inputs_embeds: Tensor | None = None,
            **_: Any,
        ) -> Tensor:
            """Compute the normalized hidden states [X, D] of tokens [X] at positions [X]."""
            stream_XD = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            rope = self.decoder.select_rope_positions(1, positions.unsqueeze(0))
            return self.decoder.forward_layers(stream_XD.unsqueeze(0), lambda layer: (rope, None))[
                0
            ]

        def compute_logits(self, hidden_states: Tensor) -> Tensor:
            """Compute logits [X, V] of normalized hidden states [X, D]."""
            return self.decoder.compute_logits(hidden_states)

        def load_weights(self, weights: Any) -> set[str]:
            """Load nothing: vLLM starts with the existing weights."""
            return set()

    return Policy


@torch.no_grad()
def install_paged_attention(model: Decoder, cache: Any) -> None:
    """Replace the attention back end of every layer by vLLM's.

    Raises:
        ProblemsFound: vLLM does not support the model's attention.
    """
    for name, layer in model.layers.items():
        attention: Any = layer.attention
        backend = attention.backend
        if (
            not hasattr(attention, "wk")
            or getattr(attention, "sinks", None) is not None
            or backend.soft_cap
            or backend.mask.block
        ):
            raise problem_error(
                "usage",
                "vLLM does not support this model's attention",
                path=("rl", "generator", "model"),
                hint="use model: huggingface",
            )
        width = attention.head_dim
        attention.backend = PagedAttention(
            backend,
            heads=attention.wq.out_features // width,
            kv_heads=attention.wk.out_features // width,
            width=width,
            name=f"layers.{name}.attention",
            cache=cache,
        )
