"""Config of the llama3 family, and what follows from its sizes."""

from copy import deepcopy
from typing import Any, ClassVar, Literal

from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    FeedForwardConfig,
    LayerCount,
    ModelConfig,
    RopeConfig,
    Sizes,
    decided,
    kept_by_layer,
    swiglu_width,
)
from titanrun.models.shared.huggingface_config import HuggingFaceConfig


class Llama3Config(ModelConfig):
    """Llama 3: pre-norm decoder with grouped-query attention, RoPE, RMSNorm and SwiGLU."""

    name: Literal["llama3"] = bookkeeping("llama3")
    builds: ClassVar = "titanrun.models.llama3.model:Llama3"
    follows: ClassVar = frozenset({("n_kv_heads",), ("head_dim",), ("feed_forward", "hidden_dim"), ("init", "output_std")})
    dim: OrAuto[PositiveInt] = numerics("auto", examples=[4096])
    """Width of the residual stream."""
    n_layers: OrAuto[LayerCount] = numerics("auto", examples=[32])
    """Number of decoder layers."""
    n_heads: OrAuto[PositiveInt] = numerics("auto", examples=[32])
    """Number of query heads."""
    n_kv_heads: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Number of key and value heads; n_heads must be a multiple of it."""
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; `auto` is dim / n_heads."""
    norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-5])
    """Epsilon of every RMSNorm."""
    tie_word_embeddings: OrAuto[bool] = numerics("auto")
    """Whether the output head shares the embedding's matrix."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: FeedForwardConfig = section(FeedForwardConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of transformers' LlamaForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="llama3")
        file.only("model_type", "llama")
        file.only("hidden_act", "silu")
        for switch in ("attention_bias", "mlp_bias", "use_sliding_window", "add_cross_attention", "tie_encoder_decoder"):
            file.only(switch, False)
        file.only("attention_dropout", 0.0, 0)
        file.only("sliding_window", None)
        file.only("cross_attention_hidden_size", None)
        file.only("pruned_heads", {})
        max_seq_len = file.whole("max_position_embeddings", 2048)
        rope_file = rope_mapping(file)
        sizes = {
            "vocab_size": file.whole("vocab_size"),
            "max_seq_len": max_seq_len,
            "dim": file.whole("hidden_size"),
            "n_layers": file.whole("num_hidden_layers"),
            "n_heads": (n_heads := file.whole("num_attention_heads")),
            "n_kv_heads": file.whole("num_key_value_heads", n_heads),
            "head_dim": file.whole("head_dim", AUTO),
            "norm_eps": file.number("rms_norm_eps", 1e-6),
            "tie_word_embeddings": file.flag("tie_word_embeddings", False),
            "rope": read_rope(rope_file, file, max_seq_len),
            "feed_forward": {"hidden_dim": file.whole("intermediate_size")},
        }
        file.close(rope_file)
        return sizes

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """Key and value heads, head width, feed-forward width and the output head's std, where they are undecided."""
        sizes = deepcopy(sizes)
        dim, feed_forward = sizes["dim"], sizes["feed_forward"]
        if sizes["n_kv_heads"] == AUTO:
            sizes["n_kv_heads"] = sizes["n_heads"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, sizes["n_heads"]):
            sizes["head_dim"] = dim // sizes["n_heads"]
        rule = (dim, feed_forward["multiple_of"], feed_forward["ffn_dim_multiplier"])
        if feed_forward["hidden_dim"] == AUTO and AUTO not in rule:
            feed_forward["hidden_dim"] = swiglu_width(dim, multiplier=rule[2], multiple_of=rule[1])
        if sizes["init"]["output_std"] == AUTO and dim != AUTO:
            sizes["init"]["output_std"] = dim**-0.5
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, odd heads that RoPE cannot pair, and a frequency ramp that runs backwards."""
        problems = []
        dim, n_heads = sizes["dim"], sizes["n_heads"]
        if sizes["head_dim"] == AUTO and AUTO not in (dim, n_heads) and dim % n_heads:
            problems.append(conflict("n_heads", f"dim {dim} cannot be split over {n_heads} heads", "change one of them, or write head_dim"))
            return problems
        head_dim, n_kv_heads = cls.derived(sizes)["head_dim"], sizes["n_kv_heads"]
        if head_dim != AUTO and head_dim % 2:
            problems.append(conflict("head_dim", f"head_dim {head_dim} is odd, and RoPE turns pairs", "use an even head_dim"))
        if AUTO not in (n_heads, n_kv_heads) and n_heads % n_kv_heads:
            message = f"{n_heads} query heads cannot share {n_kv_heads} key and value heads evenly"
            problems.append(conflict("n_kv_heads", message, f"make n_kv_heads a divisor of {n_heads}"))
        scaling = sizes["rope"]["scaling"]
        if isinstance(scaling, dict) and scaling["name"] == "llama3" and scaling["high_freq_factor"] < scaling["low_freq_factor"]:
            message = f"high_freq_factor {scaling['high_freq_factor']} is below low_freq_factor {scaling['low_freq_factor']}"
            problems.append(conflict("rope.scaling.high_freq_factor", message, "exchange the two"))
        return problems

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the model's order; a tied head is not listed."""
        dim, vocab_size = decided(self.dim), decided(self.vocab_size)
        layer = self.layer_shapes()
        shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (vocab_size, dim)}
        for index in range(decided(self.n_layers)):
            shapes.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
        shapes["norm.weight"] = (dim,)
        if not decided(self.tie_word_embeddings):
            shapes["output.weight"] = (vocab_size, dim)
        return shapes

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of one decoder layer."""
        dim, hidden_dim, head_dim = decided(self.dim), decided(self.feed_forward.hidden_dim), decided(self.head_dim)
        q_width, kv_width = decided(self.n_heads) * head_dim, decided(self.n_kv_heads) * head_dim
        return {
            "attention.wq.weight": (q_width, dim),
            "attention.wk.weight": (kv_width, dim),
            "attention.wv.weight": (kv_width, dim),
            "attention.wo.weight": (dim, q_width),
            "feed_forward.w1.weight": (hidden_dim, dim),
            "feed_forward.w2.weight": (dim, hidden_dim),
            "feed_forward.w3.weight": (hidden_dim, dim),
            "attention_norm.weight": (dim,),
            "ffn_norm.weight": (dim,),
        }

    def stream_width(self) -> int:
        """Width of the residual stream."""
        return decided(self.dim)

    def kept_widths(self) -> tuple[int, int]:
        """What a layer keeps of each token: as wide as the stream, and split by tensor parallelism."""
        head_dim = decided(self.head_dim)
        q_width, kv_width = decided(self.n_heads) * head_dim, decided(self.n_kv_heads) * head_dim
        return kept_by_layer(dim=decided(self.dim), q_width=q_width, kv_width=kv_width, hidden=decided(self.feed_forward.hidden_dim))

    def attention_width(self) -> int:
        """Key width plus value width of all query heads of all layers."""
        return decided(self.n_layers) * decided(self.n_heads) * 2 * decided(self.head_dim)


def conflict(field: str, message: str, help: str) -> Problem:
    """Two sizes that exclude each other, shown at `field` of the model section."""
    return Problem("conflict", message, ("model", *field.split(".")), help=help)


def rope_mapping(file: HuggingFaceConfig) -> HuggingFaceConfig:
    """The mapping that describes RoPE: rope_scaling in transformers 4, rope_parameters in 5, which prefers the older key."""
    scaling, parameters = file.mapping("rope_scaling"), file.mapping("rope_parameters")
    return HuggingFaceConfig(scaling or parameters, family=file.family, within="rope_scaling" if scaling else "rope_parameters")


def read_rope(rope: HuggingFaceConfig, file: HuggingFaceConfig, max_seq_len: int) -> Sizes:
    """model.rope: the base stands in `rope` (transformers 5) or at the top of `file` (transformers 4)."""
    theta = rope.number("rope_theta", file.number("rope_theta", 10000.0))
    for mapping in (rope, file):
        mapping.only("partial_rotary_factor", 1.0, 1)
    old_spelling = rope.rest.pop("type", None)
    rope.rest.setdefault("rope_type", old_spelling)
    if rope.only("rope_type", "default", "llama3") != "llama3":
        return {"theta": theta, "scaling": None}
    scaling = {
        "name": "llama3",
        "factor": rope.number("factor"),
        "low_freq_factor": rope.number("low_freq_factor"),
        "high_freq_factor": rope.number("high_freq_factor"),
        "original_max_position_embeddings": rope.whole("original_max_position_embeddings", max_seq_len),
    }
    return {"theta": theta, "scaling": scaling}
