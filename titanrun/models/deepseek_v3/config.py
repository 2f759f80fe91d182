"""Config of the deepseek_v3 family, and what follows from its sizes."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Interval

from titanrun.config.base import Config
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.render import shorten
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    PAGED_BY_VLLM,
    AttentionConfig,
    DecoderInitConfig,
    Feature,
    MoeConfig,
    RopeConfig,
    Sizes,
    decided,
)
from titanrun.models.shared.decoder_config import DecoderConfig, Shapes, conflict, rope_conflicts
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope
from titanrun.models.shared.latent_config import (
    kept_by_latent_attention,
    latent_key_value_width,
    latent_shapes,
)

# what config.json leaves unsaid, since transformers has no choice there
LATENT_NORM_EPS_OF_TRANSFORMERS = 1e-6
EXPERTS_OF_TRANSFORMERS = {
    "score_func": "sigmoid",
    "gate_bias": False,
    "score_before_experts": False,
}
BALANCE_OF_THE_PAPER = 1e-3
# each has names and shapes of its own, as LayerCount says
FurtherLayers: TypeAlias = Annotated[int, Interval(ge=0, le=100)]
FURTHER_NORMS = ("embedding_norm", "stream_norm", "out_norm")
# keys of losses and of code that are not ours; and whether a model predicts further tokens is for the recipe to say
UNREAD = (
    "aux_loss_alpha",
    "auto_map",
    "ep_size",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "output_router_logits",
    "seq_aux",
)


class DeepseekV3FeedForwardConfig(Config):
    """SwiGLU width of the dense layers."""

    hidden_dim: OrAuto[PositiveInt] = numerics("auto", examples=[18432])
    """Width of the hidden layer; not used where every layer is a mixture of experts."""


class DeepseekV3Config(DecoderConfig):
    """DeepSeek-V3: pre-norm decoder with multi-head latent attention, a few dense layers, then experts in groups."""

    name: Literal["deepseek_v3"] = bookkeeping("deepseek_v3")
    builds: ClassVar = "titanrun.models.deepseek_v3.model:DeepseekV3"
    huggingface_types: ClassVar = ("deepseek_v3",)
    lacks: ClassVar[frozenset[Feature]] = frozenset({"paged attention"})
    instead: ClassVar[dict[Feature, str]] = {"paged attention": PAGED_BY_VLLM}
    follows: ClassVar = DecoderConfig.follows | {("latent_norm_eps",)}
    latent_norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-6])
    """Epsilon of the norms within attention, of compressed queries and of compressed keys and values; `auto` is norm_eps."""
    n_dense_layers: OrAuto[NonNegativeInt] = numerics("auto", examples=[3])
    """First layers whose hidden part is one SwiGLU; all others are mixtures of experts."""
    q_lora_rank: OrAuto[PositiveInt] | None = numerics("auto", examples=[1536])
    """Width that queries are compressed to; null: queries are not compressed."""
    kv_lora_rank: OrAuto[PositiveInt] = numerics("auto", examples=[512])
    """Width that keys and values are compressed to, together."""
    qk_nope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the part of a query or key that RoPE leaves alone."""
    qk_rope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Width of the part of a query or key that RoPE turns; all heads share that part of the key."""
    v_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the value of one head."""
    num_mtp_layers: FurtherLayers = numerics(0, examples=[1])
    """Layers behind the last one that predict the tokens after the next one, in training alone; loss multi_token_cross_entropy."""
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: DeepseekV3FeedForwardConfig = section(DeepseekV3FeedForwardConfig)
    moe: MoeConfig = section(MoeConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def sizes_from_huggingface(cls, written: dict[str, Any]) -> Sizes:
        """The sizes in a config.json of transformers' DeepseekV3ForCausalLM; absent keys have transformers' defaults."""
        file = HuggingFaceConfig(written, family="deepseek_v3")
        file.only("model_type", *cls.huggingface_types)
        file.only("rope_interleave", True)
        file.only("moe_layer_freq", 1)
        for key in UNREAD:
            file.rest.pop(key, None)
        sizes = read_decoder(file, max_seq_len=4096)
        sizes |= {
            "latent_norm_eps": LATENT_NORM_EPS_OF_TRANSFORMERS,
            "n_dense_layers": file.count("first_k_dense_replace", 3),
            # null, which here is no absent key
            "q_lora_rank": file.whole("q_lora_rank", None) if "q_lora_rank" in file.rest else 1536,
            "kv_lora_rank": file.whole("kv_lora_rank", 512),
            "qk_nope_head_dim": file.whole("qk_nope_head_dim", 128),
            "qk_rope_head_dim": file.whole("qk_rope_head_dim", 64),
            "v_head_dim": file.whole("v_head_dim", 128),
            "rope": read_rope(file, "yarn", "llama3", max_seq_len=sizes["max_seq_len"]),
            "feed_forward": {"hidden_dim": file.whole("intermediate_size", 18432)},
            "moe": read_experts(file),
        }
        file.only("num_key_value_heads", sizes["n_heads"])
        file.only("head_dim", sizes["qk_rope_head_dim"])
        file.only("qk_head_dim", sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"])
        file.close()
        return sizes

    @classmethod
    def for_rows(cls, sizes: Sizes, row_length: int) -> Sizes:
        """Without YaRN where rows fit into the original context, as torchtitan trains."""
        scaling = sizes["rope"]["scaling"]
        if scaling is not None and row_length <= scaling["original_max_position_embeddings"]:
            return {**sizes, "rope": {**sizes["rope"], "scaling": None}}
        return sizes

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """The epsilon of the norms within attention and the output head's std, where they are undecided."""
        sizes = super().derived(sizes)
        if sizes["latent_norm_eps"] == AUTO:
            sizes["latent_norm_eps"] = sizes["norm_eps"]
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """A part that RoPE cannot turn, more dense layers than layers, and what rope and moe cannot be."""
        problems = []
        turned, dense, layers = (
            sizes["qk_rope_head_dim"],
            sizes["n_dense_layers"],
            sizes["n_layers"],
        )
        if turned != AUTO and turned % 2:
            message = f"qk_rope_head_dim {turned} is odd, and RoPE turns pairs"
            problems.append(conflict("qk_rope_head_dim", message, "use an even qk_rope_head_dim"))
        if AUTO not in (dense, layers) and dense > layers:
            message = f"the first {dense} layers are dense, and there are {layers}"
            problems.append(conflict("n_dense_layers", message, f"use {layers} at most"))
        return problems + rope_conflicts(sizes["rope"]) + super().conflicts(sizes)

    def layer_count(self) -> int:
        """All layers, those that predict further tokens behind the others."""
        return super().layer_count() + self.num_mtp_layers

    def has_experts(self, layer: int) -> bool:
        """Whether a layer comes after the dense ones; layers that predict further tokens are as the last of the others."""
        return min(layer, decided(self.n_layers) - 1) >= decided(self.n_dense_layers)

    def further_tokens(self) -> int:
        """Tokens after the next one that the model predicts in training."""
        return self.num_mtp_layers

    def shapes_beside(self, layer: int) -> Shapes:
        """What joins the stream with the embedding of a further token, and the norms around it."""
        if layer < decided(self.n_layers):
            return {}
        dim = decided(self.dim)
        norms: Shapes = {f"{name}.weight": (dim,) for name in FURTHER_NORMS}
        return norms | {"join.weight": (dim, 2 * dim)}

    def routed_experts(self) -> int:
        """Experts of a layer that a router chooses from; 0 where all layers are dense."""
        return super().routed_experts() if self.expert_layer_count() else 0

    def attention_shapes(self) -> Shapes:
        """Name and shape of every parameter of one layer's attention."""
        return latent_shapes(self, dim=decided(self.dim), heads=decided(self.n_heads))

    def kept_by_attention(self) -> int:
        """What latent attention keeps."""
        return kept_by_latent_attention(self, heads=decided(self.n_heads))

    def key_value_width(self) -> int:
        """Width of the keys of all heads of one layer, plus that of the values."""
        return latent_key_value_width(self, heads=decided(self.n_heads))

    def attention_width(self) -> int:
        """Key width plus value width of all heads of all layers."""
        return self.layer_count() * self.key_value_width()

    def export_problems(self) -> list[Problem]:
        """Experts that are chosen, weighted or shared in another way than in transformers, and norms with another epsilon."""
        problems = []
        for field, theirs in EXPERTS_OF_TRANSFORMERS.items():
            ours = getattr(self.moe, field)
            if ours != theirs:
                problems.append(not_of_transformers(f"moe.{field}", ours, theirs))
        if decided(self.moe.num_shared_experts) == 0:
            problems.append(not_of_transformers("moe.num_shared_experts", 0, 1))
        if decided(self.latent_norm_eps) != LATENT_NORM_EPS_OF_TRANSFORMERS:
            problems.append(
                not_of_transformers(
                    "latent_norm_eps", self.latent_norm_eps, LATENT_NORM_EPS_OF_TRANSFORMERS
                )
            )
        return problems


def not_of_transformers(field: str, ours: Any, theirs: Any) -> Problem:
    """A setting that DeepseekV3ForCausalLM has another value for, and no key."""
    message = f"transformers' DeepseekV3 has model.{field} {shorten(theirs)} only, and here it is {shorten(ours)}"
    return conflict(field, message, f"use {shorten(theirs)}, or export nothing")


def read_experts(file: HuggingFaceConfig) -> Sizes:
    """model.moe of a config.json."""
    file.only("scoring_func", "sigmoid")
    file.only("topk_method", "noaux_tc")
    groups = file.whole("n_group", 8)
    limited = file.whole("topk_group", 4)
    return {
        "num_experts": file.whole("n_routed_experts", 256),
        "top_k": file.whole("num_experts_per_tok", 8),
        "hidden_dim": file.whole("moe_intermediate_size", 2048),
        "num_shared_experts": file.whole("n_shared_experts", 1),
        "route_norm": file.flag("norm_topk_prob", True),
        "route_scale": file.number("routed_scaling_factor", 2.5),
        # all experts in one group is no choice of groups
        "num_expert_groups": None if groups == limited else groups,
        "num_limited_groups": None if groups == limited else limited,
        "load_balance_coeff": BALANCE_OF_THE_PAPER,
        **EXPERTS_OF_TRANSFORMERS,
    }
