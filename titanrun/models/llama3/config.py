"""Config of the llama3 family, and quantities that follow from its sizes."""

from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    Sizes,
    fill_default_dims,
)
from titanrun.models.shared.decoder_config import (
    GroupedQueryConfig,
    build_size_problem,
    find_rope_problems,
)
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.huggingface_decoder_config import read_decoder_sizes, read_rope_sizes
from titanrun.models.shared.rope_config import RopeConfig


class Llama3Config(GroupedQueryConfig):
    """Llama 3: pre-norm decoder with grouped-query attention, RoPE, RMSNorm and SwiGLU."""

    name: Literal["llama3"] = bookkeeping("llama3")
    builds: ClassVar = "titanrun.models.llama3.model:Llama3"
    huggingface_types: ClassVar = ("llama",)
    derived_fields: ClassVar = GroupedQueryConfig.derived_fields | {
        ("n_kv_heads",),
        ("head_dim",),
        ("feed_forward", "hidden_dim"),
    }
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head. `auto` is dim / n_heads."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: FeedForwardConfig = section(FeedForwardConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes in a config.json of transformers' LlamaForCausalLM.

        Absent keys have transformers' defaults.
        """
        file = HuggingFaceConfigReader(config_json, family="llama3")
        file.take_one_allowed("model_type", *cls.huggingface_types)
        file.take_one_allowed("sliding_window", None)
        for switch in ("mlp_bias", "use_sliding_window"):
            file.take_one_allowed(switch, False)
        sizes = read_decoder_sizes(file, max_seq_len=2048)
        sizes |= {
            "n_kv_heads": file.take_positive_int("num_key_value_heads", sizes["n_heads"]),
            "head_dim": file.take_positive_int("head_dim", AUTO),
            "rope": read_rope_sizes(file, "llama3", max_seq_len=sizes["max_seq_len"]),
            "feed_forward": {"hidden_dim": file.take_positive_int("intermediate_size")},
        }
        file.check_all_keys_read()
        return sizes

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Fill undecided key and value heads, head width, feed-forward width and output std."""
        return fill_default_dims(super().fill_derived_sizes(sizes))

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find heads that do not divide or are odd, and a RoPE ramp that runs backwards."""
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            return [
                build_size_problem(
                    "n_heads",
                    f"dim {dim} is not divisible by n_heads {n_heads}",
                    "change one of them, or set head_dim",
                )
            ]
        return super().find_size_problems(cls.fill_derived_sizes(sizes)) + find_rope_problems(
            sizes["rope"]
        )
