"""gpt-oss (https://arxiv.org/abs/2508.10925), a pre-norm decoder with attention sinks, windows in every second layer, and experts.

Shapes: B batch, T tokens of a row, H head width.
"""

import torch
from torch import Generator, Tensor

from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.gpt_oss.experts import ClampedExperts
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import cos_sin_table, rope_rows, rotate_halves


class Attention(GroupedQueryAttention):
    """Masked self-attention with biases and sinks, in some layers within a window."""

    def __init__(self, config: GptOssConfig, *, window: int | None) -> None:
        backend = attention_backend(config.attention, window=window)
        super().__init__(
            config, backend=backend, turn=rotate_halves, bias=True, output_bias=True, sinks=True
        )

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw weights, biases and sinks at `into_stream_std`."""
        for weight in self.parameters():
            truncated_normal_(
                weight, std=into_stream_std, bound=init.truncation, generator=generator
            )


class GptOss(Decoder):
    """Token ids to logits of the next token."""

    config: GptOssConfig

    def __init__(self, config: GptOssConfig, *, seq_len: int) -> None:
        layers = [self.layer(config, index) for index in range(config.n_layers)]
        super().__init__(config, layers, seq_len=seq_len)

    @staticmethod
    def layer(config: GptOssConfig, index: int) -> DecoderLayer:
        """The layer of that number."""
        moe = Moe(config.moe, dim=config.dim, experts=ClampedExperts(config.moe, dim=config.dim))
        return DecoderLayer(
            config, attention=Attention(config, window=config.window(index)), moe=moe
        )

    def new_rope_table(self, device: torch.device) -> Tensor:
        """Cosines and sines [T, 2 H]; on the meta device only the shape."""
        config = self.config
        if device.type == "meta":
            return torch.empty(
                self.seq_len, 2 * config.head_dim, dtype=torch.float32, device=device
            )
        rope = config.rope
        return cos_sin_table(
            rope.theta,
            head_dim=config.head_dim,
            seq_len=self.seq_len,
            scaling=rope.scaling,
            device=device,
        )

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of cosines and sines [1 or B, T, 1, 2 H]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
