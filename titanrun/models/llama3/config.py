"""Config of the llama3 family, and what follows from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    RopeConfig,
    Sizes,
    with_plain_widths,
)
from titanrun.models.shared.decoder_config import GroupedQueryConfig, conflict, rope_conflicts
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope


class Llama3Config(GroupedQueryConfig):
    """Llama 3: pre-norm decoder with grouped-query attention, RoPE, RMSNorm and SwiGLU."""

    name: Literal["llama3"] = bookkeeping("llama3")
    builds: ClassVar = "titanrun.models.llama3.model:Llama3"
    huggingface_types: ClassVar = ("llama",)
    follows: ClassVar = GroupedQueryConfig.follows | {
        ("n_kv_heads",),
        ("head_dim",),
        ("feed_forward", "hidden_dim"),
    }
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; `auto` is dim / n_heads."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: FeedForwardConfig = section(FeedForwardConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of transformers' LlamaForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="llama3")
        file.only("model_type", *cls.huggingface_types)
        file.only("sliding_window", None)
        for switch in ("mlp_bias", "use_sliding_window"):
            file.only(switch, False)
        sizes = read_decoder(file, max_seq_len=2048)
        sizes |= {
            "n_kv_heads": file.whole("num_key_value_heads", sizes["n_heads"]),
            "head_dim": file.whole("head_dim", AUTO),
            "rope": read_rope(file, "llama3", max_seq_len=sizes["max_seq_len"]),
            "feed_forward": {"hidden_dim": file.whole("intermediate_size")},
        }
        file.close()
        return sizes

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """Key and value heads, head width, feed-forward width and the output head's std, where they are undecided."""
        return with_plain_widths(super().derived(sizes))

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, odd heads that RoPE cannot pair, and a frequency ramp that runs backwards."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            return [
                conflict(
                    "n_heads",
                    f"dim {dim} cannot be split over {n_heads} heads",
                    "change one of them, or write head_dim",
                )
            ]
        return super().conflicts(cls.derived(sizes)) + rope_conflicts(sizes["rope"])
