"""The policy's own model inside vLLM: its code, with attention whose keys and values vLLM remembers. Needs the extra `vllm`.

Shapes: X tokens of all sequences, one after the other, D model width, S queries, T keys, N query heads, K key and value heads, H head
width, W the width that a kernel takes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention

from titanrun.config.problems import fail
from titanrun.models.shared.attention import SdpaAttention
from titanrun.models.shared.decoder import Decoder

# kernels take heads of such widths; narrower ones are filled up with zeros, which change no score
WIDTH_UNIT = 32


class PagedAttention(nn.Module):
    """An attention back end of one row that holds the tokens of all sequences; vLLM tells them apart.

    Args:
        inner: the layer's own back end.
        heads: queries of a token.
        kv_heads: keys and values of it.
        width: of a head.
        name: of the layer, the same for no other.
        cache: vLLM's settings of it.
    """

    def __init__(
        self, inner: SdpaAttention, *, heads: int, kv_heads: int, width: int, name: str, cache: Any
    ) -> None:
        super().__init__()
        self.mask = inner.mask
        self.filling = -width % WIDTH_UNIT
        self.width = width
        self.paged = Attention(
            heads,
            width + self.filling,
            inner.scale or width**-0.5,
            num_kv_heads=kv_heads,
            cache_config=cache,
            per_layer_sliding_window=inner.mask.window,
            prefix=name,
        )

    def forward(
        self,
        q_1NSH: Tensor,
        k_1KTH: Tensor,
        v_1KTH: Tensor,
        seen: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Gives [1, N, S, H]; `seen` is vLLM's own business."""
        flat = (
            F.pad(tensor[0].transpose(0, 1), (0, self.filling)).flatten(1)
            for tensor in (q_1NSH, k_1KTH, v_1KTH)
        )
        out_XNW: Tensor = self.paged(*flat).unflatten(-1, (q_1NSH.size(1), -1))
        return out_XNW[..., : self.width].transpose(0, 1).unsqueeze(0)


def policy_class(build: Callable[[], Decoder]) -> type[nn.Module]:
    """The class that vLLM makes its model of, around the decoder that `build` gives."""

    class Policy(nn.Module):
        """As vLLM calls its models. `names` are those of the decoder's own weights."""

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            self.decoder = build()
            self.own: dict[str, Tensor] = self.decoder.state_dict()
            give_paged_attention(self.decoder, vllm_config.cache_config)

        def embed_input_ids(self, input_ids: Tensor) -> Tensor:
            """Tokens [X] as the stream [X, D]."""
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
            """The normalised stream [X, D] of tokens [X] at their positions [X]."""
            stream_XD = self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
            rope = self.decoder.rope_rows(1, positions.unsqueeze(0))
            return self.decoder.stream(stream_XD.unsqueeze(0), lambda layer: (rope, None))[0]

        def compute_logits(self, hidden_states: Tensor) -> Tensor:
            """Logits [X, V] of the normalised stream [X, D]."""
            return self.decoder.logits(hidden_states)

        def load_weights(self, weights: Any) -> set[str]:
            """vLLM's loader begins with whatever is there."""
            return set()

    return Policy


@torch.no_grad()
def give_paged_attention(model: Decoder, cache: Any) -> None:
    """Puts vLLM's attention into every layer. Raises a problem for attention that it cannot compute."""
    for name, layer in model.layers.items():
        attention: Any = layer.attention
        backend = attention.backend
        if (
            not hasattr(attention, "wk")
            or getattr(attention, "sinks", None) is not None
            or backend.soft_cap
            or backend.mask.block
        ):
            raise fail(
                "usage",
                "vLLM has no attention like this model's",
                path=("rl", "generator", "model"),
                help="use huggingface",
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
