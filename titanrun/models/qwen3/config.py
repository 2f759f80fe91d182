"""Config of the qwen3 family, dense and mixture of experts, and what follows from its sizes."""

from copy import deepcopy
from typing import Any, ClassVar, Literal

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    AttentionConfig,
    DecoderInitConfig,
    ModelConfig,
    MoeConfig,
    Sizes,
    decided,
    kept_by_layer,
    moe_conflicts,
)
from titanrun.models.shared.huggingface_config import HuggingFaceConfig

# what config.json leaves unsaid, since transformers has no choice there; the bias is titanrun's own
EXPERTS_OF_TRANSFORMERS = {
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
}


class Qwen3RopeConfig(Config):
    """Rotary position embedding of contiguous halves, in the dtype of the activations."""

    theta: OrAuto[PositiveFloat] = numerics("auto", examples=[1000000.0])
    """Base of the frequencies theta^(-2i/head_dim)."""


class Qwen3FeedForwardConfig(Config):
    """SwiGLU width of the dense layers."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[3072])
    """Width of the hidden layer; not used where every layer is a mixture of experts."""


class Qwen3Config(ModelConfig):
    """Qwen3: pre-norm decoder with normalised queries and keys, grouped-query attention, SwiGLU or experts in every layer."""

    name: Literal["qwen3"] = bookkeeping("qwen3")
    builds: ClassVar = "titanrun.models.qwen3.model:Qwen3"
    follows: ClassVar = frozenset({("init", "output_std")})
    dim: OrAuto[PositiveInt] = numerics("auto", examples=[4096])
    """Width of the residual stream."""
    n_layers: OrAuto[PositiveInt] = numerics("auto", examples=[36])
    """Number of decoder layers."""
    n_heads: OrAuto[PositiveInt] = numerics("auto", examples=[32])
    """Number of query heads."""
    n_kv_heads: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Number of key and value heads; n_heads must be a multiple of it."""
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; n_heads times it may differ from dim."""
    norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-6])
    """Epsilon of every RMSNorm."""
    tie_word_embeddings: OrAuto[bool] = numerics("auto")
    """Whether the output head shares the embedding's matrix."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: Qwen3RopeConfig = section(Qwen3RopeConfig)
    feed_forward: Qwen3FeedForwardConfig = section(Qwen3FeedForwardConfig)
    moe: OrAuto[MoeConfig] | None = component("auto")
    """The experts of every layer; null: dense layers."""
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of Qwen3ForCausalLM or Qwen3MoeForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="qwen3")
        is_moe = file.only("model_type", "qwen3", "qwen3_moe") == "qwen3_moe"
        file.only("hidden_act", "silu")
        for switch in ("attention_bias", "use_sliding_window", "add_cross_attention", "tie_encoder_decoder"):
            file.only(switch, False)
        file.only("attention_dropout", 0.0, 0)
        file.only("sliding_window", None)
        file.only("cross_attention_hidden_size", None)
        file.only("pruned_heads", {})
        n_layers = file.whole("num_hidden_layers")
        file.only("layer_types", ["full_attention"] * (n_layers or 0))
        file.take("max_window_layers", 0, lambda value: type(value) is int, "a whole number")
        rope_file = HuggingFaceConfig(file.mapping("rope_parameters"), family="qwen3", within="rope_parameters")
        rope_file.only("rope_type", "default")
        file.only("rope_scaling", None)
        sizes = {
            "vocab_size": file.whole("vocab_size"),
            "max_seq_len": file.whole("max_position_embeddings", 32768),
            "dim": file.whole("hidden_size"),
            "n_layers": n_layers,
            "n_heads": (n_heads := file.whole("num_attention_heads")),
            "n_kv_heads": file.whole("num_key_value_heads", n_heads),
            "head_dim": file.whole("head_dim", 128),
            "norm_eps": file.number("rms_norm_eps", 1e-6),
            "tie_word_embeddings": file.flag("tie_word_embeddings", False),
            "rope": {"theta": rope_file.number("rope_theta", file.number("rope_theta", 10000.0))},
            "feed_forward": {"hidden_dim": file.whole("intermediate_size")},
            "moe": read_experts(file) if is_moe else None,
        }
        file.close(rope_file)
        return sizes

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """The output head's std, where it is undecided."""
        sizes = deepcopy(sizes)
        if sizes["init"]["output_std"] == AUTO and sizes["dim"] != AUTO:
            sizes["init"]["output_std"] = sizes["dim"] ** -0.5
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Heads that do not divide, odd heads that RoPE cannot turn, and experts that cannot be chosen."""
        problems = []
        n_heads, n_kv_heads, head_dim = sizes["n_heads"], sizes["n_kv_heads"], sizes["head_dim"]
        if head_dim != AUTO and head_dim % 2:
            message = f"head_dim {head_dim} is odd, and RoPE turns pairs"
            problems.append(Problem("conflict", message, ("model", "head_dim"), help="use an even head_dim"))
        if AUTO not in (n_heads, n_kv_heads) and n_heads % n_kv_heads:
            message = f"{n_heads} query heads cannot share {n_kv_heads} key and value heads evenly"
            problems.append(Problem("conflict", message, ("model", "n_kv_heads"), help=f"make n_kv_heads a divisor of {n_heads}"))
        return problems + (moe_conflicts(sizes["moe"]) if isinstance(sizes["moe"], dict) else [])

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter, in the model's order; a tied head is not listed."""
        dim, vocab_size = decided(self.dim), decided(self.vocab_size)
        layer = self.attention_shapes() | self.hidden_shapes() | {"attention_norm.weight": (dim,), "ffn_norm.weight": (dim,)}
        shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (vocab_size, dim)}
        for index in range(decided(self.n_layers)):
            shapes.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
        shapes["norm.weight"] = (dim,)
        if not decided(self.tie_word_embeddings):
            shapes["output.weight"] = (vocab_size, dim)
        return shapes

    def attention_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of one layer's attention."""
        dim, head_dim = decided(self.dim), decided(self.head_dim)
        q_width, kv_width = decided(self.n_heads) * head_dim, decided(self.n_kv_heads) * head_dim
        return {
            "attention.wq.weight": (q_width, dim),
            "attention.wk.weight": (kv_width, dim),
            "attention.wv.weight": (kv_width, dim),
            "attention.wo.weight": (dim, q_width),
            "attention.q_norm.weight": (head_dim,),
            "attention.k_norm.weight": (head_dim,),
        }

    def hidden_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of one layer's feed-forward part."""
        dim, moe = decided(self.dim), decided(self.moe)
        if moe is None:
            hidden = decided(self.feed_forward.hidden_dim)
            return {f"feed_forward.w{n}.weight": (dim, hidden) if n == 2 else (hidden, dim) for n in (1, 2, 3)}
        experts, hidden = decided(moe.num_experts), decided(moe.hidden_dim)
        shapes: dict[str, tuple[int, ...]] = {"moe.router.gate.weight": (experts, dim)}
        if moe.gate_bias:
            shapes["moe.router.gate.bias"] = (experts,)
        shapes |= {f"moe.experts.w{n}": (experts, dim, hidden) if n == 2 else (experts, hidden, dim) for n in (1, 2, 3)}
        shared = decided(moe.num_shared_experts) * hidden
        if shared:
            shapes |= {f"moe.shared_experts.w{n}.weight": (dim, shared) if n == 2 else (shared, dim) for n in (1, 2, 3)}
        return shapes

    def stream_width(self) -> int:
        """Width of the residual stream."""
        return decided(self.dim)

    def kept_widths(self) -> tuple[int, int]:
        """What a layer keeps of each token: as wide as the stream, and split by tensor parallelism. Norms keep queries and keys once more,
        and each expert the token before and after it."""
        dim, head_dim, moe = decided(self.dim), decided(self.head_dim), decided(self.moe)
        q_width, kv_width = decided(self.n_heads) * head_dim, decided(self.n_kv_heads) * head_dim
        hidden = decided(self.feed_forward.hidden_dim) if moe is None else decided(moe.top_k) * decided(moe.hidden_dim)
        stream, split = kept_by_layer(dim=dim, q_width=q_width, kv_width=kv_width, hidden=hidden)
        slots = 0 if moe is None else 2 * decided(moe.top_k) * dim
        return stream + slots, split + q_width + kv_width

    def attention_width(self) -> int:
        """Key width plus value width of all query heads of all layers."""
        return decided(self.n_layers) * decided(self.n_heads) * 2 * decided(self.head_dim)

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers."""
        moe, problems = decided(self.moe), []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items() if moe is not None else ():
            ours = getattr(moe, field)
            if ours != theirs and field != "load_balance_coeff":
                message = f"transformers' Qwen3 has no experts with {field}: {shorten(ours)}"
                problems.append(Problem("conflict", message, ("model", "moe", field), help=f"use {shorten(theirs)}, or export nothing"))
        return problems

    def idle_parameter_count(self) -> int:
        """Parameters of the experts that a token is not sent to."""
        moe = decided(self.moe)
        if moe is None:
            return 0
        idle = decided(moe.num_experts) - decided(moe.top_k)
        return decided(self.n_layers) * idle * 3 * decided(self.dim) * decided(moe.hidden_dim)


def read_experts(file: HuggingFaceConfig) -> Sizes:
    """model.moe of a config.json of Qwen3MoeForCausalLM, whose every layer must have experts."""
    file.only("decoder_sparse_step", 1)
    file.only("mlp_only_layers", [])
    for key in ("router_aux_loss_coef", "output_router_logits"):  # of a loss that is not ours
        file.rest.pop(key, None)
    num_experts = file.whole("num_experts", file.whole("num_local_experts", 128))
    return {
        "num_experts": num_experts,
        "top_k": file.whole("num_experts_per_tok", 8),
        "hidden_dim": file.whole("moe_intermediate_size", 768),
        "route_norm": file.flag("norm_topk_prob", False),
        **EXPERTS_OF_TRANSFORMERS,
    }
