"""Config of the deepseek_v3 family, and quantities that follow from its sizes."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from annotated_types import Interval

from titanrun.config.base import Config
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import bookkeeping, numerics, section
from titanrun.config.problems import Problem
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    PAGED_ATTENTION_ALTERNATIVE,
    AttentionConfig,
    DecoderInitConfig,
    ModelFeature,
    MoeConfig,
    Sizes,
    unwrap_auto,
)
from titanrun.models.shared.decoder_config import (
    DecoderConfig,
    Shapes,
    build_size_problem,
    find_rope_problems,
)
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.huggingface_decoder_config import read_decoder_sizes, read_rope_sizes
from titanrun.models.shared.latent_config import (
    count_latent_activation_elements,
    get_latent_attention_shapes,
    get_latent_kv_dim,
)
from titanrun.models.shared.rope_config import RopeConfig

# values that config.json does not contain, since transformers has no choice there
TRANSFORMERS_LATENT_NORM_EPS = 1e-6
TRANSFORMERS_EXPERT_SIZES = {
    "score_func": "sigmoid",
    "gate_bias": False,
    "score_before_experts": False,
}
PAPER_LOAD_BALANCE_COEFF = 1e-3
# each layer has its own names and shapes, see LayerCount
MTPLayerCount: TypeAlias = Annotated[int, Interval(ge=0, le=100)]
MTP_NORM_NAMES = ("embedding_norm", "stream_norm", "out_norm")
# keys of losses and code that titanrun does not use; the recipe decides about multi-token
# prediction
IGNORED_KEYS = (
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
    """Width of the feed-forward layer. Not used if every layer is a mixture of experts."""


class DeepseekV3Config(DecoderConfig):
    """DeepSeek-V3: pre-norm decoder with multi-head latent attention and grouped experts.

    The first layers are dense.
    """

    name: Literal["deepseek_v3"] = bookkeeping("deepseek_v3")
    builds: ClassVar = "titanrun.models.deepseek_v3.model:DeepseekV3"
    huggingface_types: ClassVar = ("deepseek_v3",)
    unsupported_features: ClassVar[frozenset[ModelFeature]] = frozenset({"paged attention"})
    alternative: ClassVar[dict[ModelFeature, str]] = {
        "paged attention": PAGED_ATTENTION_ALTERNATIVE
    }
    derived_fields: ClassVar = DecoderConfig.derived_fields | {("latent_norm_eps",)}
    latent_norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-6])
    """Epsilon of the norms within attention, of compressed queries and of compressed keys and
    values. `auto` is norm_eps.
    """
    n_dense_layers: OrAuto[NonNegativeInt] = numerics("auto", examples=[3])
    """Number of first layers with one SwiGLU. All others are mixtures of experts."""
    q_lora_rank: OrAuto[PositiveInt] | None = numerics("auto", examples=[1536])
    """Width to which queries are compressed. null: queries are not compressed."""
    kv_lora_rank: OrAuto[PositiveInt] = numerics("auto", examples=[512])
    """Width to which keys and values are compressed together."""
    qk_nope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the part of a query or key without RoPE."""
    qk_rope_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[64])
    """Width of the part of a query or key with RoPE. All heads share that part of the key."""
    v_head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of the value of one head."""
    num_mtp_layers: MTPLayerCount = numerics(0, examples=[1])
    """Number of multi-token prediction layers after the last one, used in training only with loss
    multi_token_cross_entropy.
    """
    attention: AttentionConfig = section(AttentionConfig)
    rope: RopeConfig = section(RopeConfig)
    feed_forward: DeepseekV3FeedForwardConfig = section(DeepseekV3FeedForwardConfig)
    moe: MoeConfig = section(MoeConfig)
    init: DecoderInitConfig = section(DecoderInitConfig)

    @classmethod
    def read_huggingface_sizes(cls, config_json: dict[str, Any]) -> Sizes:
        """Return the sizes in a config.json of transformers' DeepseekV3ForCausalLM.

        Absent keys have transformers' defaults.
        """
        file = HuggingFaceConfigReader(config_json, family="deepseek_v3")
        file.take_one_allowed("model_type", *cls.huggingface_types)
        file.take_one_allowed("rope_interleave", True)
        file.take_one_allowed("moe_layer_freq", 1)
        for key in IGNORED_KEYS:
            file.remaining.pop(key, None)
        sizes = read_decoder_sizes(file, max_seq_len=4096)
        sizes |= {
            "latent_norm_eps": TRANSFORMERS_LATENT_NORM_EPS,
            "n_dense_layers": file.take_non_negative_int("first_k_dense_replace", 3),
            # null, which differs from an absent key here
            "q_lora_rank": file.take_positive_int("q_lora_rank", None)
            if "q_lora_rank" in file.remaining
            else 1536,
            "kv_lora_rank": file.take_positive_int("kv_lora_rank", 512),
            "qk_nope_head_dim": file.take_positive_int("qk_nope_head_dim", 128),
            "qk_rope_head_dim": file.take_positive_int("qk_rope_head_dim", 64),
            "v_head_dim": file.take_positive_int("v_head_dim", 128),
            "rope": read_rope_sizes(file, "yarn", "llama3", max_seq_len=sizes["max_seq_len"]),
            "feed_forward": {"hidden_dim": file.take_positive_int("intermediate_size", 18432)},
            "moe": read_deepseek_v3_experts(file),
        }
        file.take_one_allowed("num_key_value_heads", sizes["n_heads"])
        file.take_one_allowed("head_dim", sizes["qk_rope_head_dim"])
        file.take_one_allowed("qk_head_dim", sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"])
        file.check_all_keys_read()
        return sizes

    @classmethod
    def adapt_sizes_to_seq_len(cls, sizes: Sizes, seq_len: int) -> Sizes:
        """Remove YaRN if sequences fit into the original context, as torchtitan does."""
        scaling = sizes["rope"]["scaling"]
        if scaling is not None and seq_len <= scaling["original_max_position_embeddings"]:
            return {**sizes, "rope": {**sizes["rope"], "scaling": None}}
        return sizes

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Fill the epsilon of the norms within attention and the std of the output head."""
        sizes = super().fill_derived_sizes(sizes)
        if sizes["latent_norm_eps"] == AUTO:
            sizes["latent_norm_eps"] = sizes["norm_eps"]
        return sizes

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find an odd RoPE width, too many dense layers, and invalid rope and moe sizes."""
        problems = []
        turned, dense, layers = (
            sizes["qk_rope_head_dim"],
            sizes["n_dense_layers"],
            sizes["n_layers"],
        )
        if turned != AUTO and turned % 2:
            message = f"qk_rope_head_dim {turned} is odd, but RoPE rotates pairs"
            problems.append(
                build_size_problem("qk_rope_head_dim", message, "use an even qk_rope_head_dim")
            )
        if AUTO not in (dense, layers) and dense > layers:
            message = f"n_dense_layers {dense} exceeds n_layers {layers}"
            problems.append(build_size_problem("n_dense_layers", message, f"use at most {layers}"))
        return problems + find_rope_problems(sizes["rope"]) + super().find_size_problems(sizes)

    def layer_count(self) -> int:
        """Return the number of all layers. Multi-token prediction layers come last."""
        return super().layer_count() + self.num_mtp_layers

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer comes after the dense ones.

        Multi-token prediction layers are like the last of the other layers.
        """
        return min(layer, unwrap_auto(self.n_layers) - 1) >= unwrap_auto(self.n_dense_layers)

    def mtp_depth(self) -> int:
        """Return the number of tokens after the next one that the model predicts in training."""
        return self.num_mtp_layers

    def extra_layer_shapes(self, layer: int) -> Shapes:
        """Return the shapes of a multi-token prediction layer's join and norms.

        The join combines the stream with the embedding of a later token.
        """
        if layer < unwrap_auto(self.n_layers):
            return {}
        dim = unwrap_auto(self.dim)
        norms: Shapes = {f"{name}.weight": (dim,) for name in MTP_NORM_NAMES}
        return norms | {"join.weight": (dim, 2 * dim)}

    def count_routed_experts(self) -> int:
        """Return the number of experts that a router chooses from, 0 if all layers are dense."""
        return super().count_routed_experts() if self.expert_layer_count() else 0

    def attention_shapes(self) -> Shapes:
        """Return name and shape of every parameter of one layer's attention."""
        return get_latent_attention_shapes(
            self, dim=unwrap_auto(self.dim), heads=unwrap_auto(self.n_heads)
        )

    def attention_activation_elements(self) -> int:
        """Return the elements that latent attention keeps per token."""
        return count_latent_activation_elements(self, heads=unwrap_auto(self.n_heads))

    def kv_dim(self) -> int:
        """Return the width of keys plus values of all heads of one layer."""
        return get_latent_kv_dim(self, heads=unwrap_auto(self.n_heads))

    def attention_dim(self) -> int:
        """Return key width plus value width of all heads of all layers."""
        return self.layer_count() * self.kv_dim()

    def export_problems(self) -> list[Problem]:
        """Return expert settings and norm epsilons that differ from transformers."""
        problems = []
        for field, theirs in TRANSFORMERS_EXPERT_SIZES.items():
            ours = getattr(self.moe, field)
            if ours != theirs:
                problems.append(build_export_problem(f"moe.{field}", ours, theirs))
        if unwrap_auto(self.moe.num_shared_experts) == 0:
            problems.append(build_export_problem("moe.num_shared_experts", 0, 1))
        if unwrap_auto(self.latent_norm_eps) != TRANSFORMERS_LATENT_NORM_EPS:
            problems.append(
                build_export_problem(
                    "latent_norm_eps", self.latent_norm_eps, TRANSFORMERS_LATENT_NORM_EPS
                )
            )
        return problems


def build_export_problem(field: str, ours: Any, theirs: Any) -> Problem:
    """Build the problem of a setting that DeepseekV3ForCausalLM fixes without a key."""
    message = (
        f"transformers' DeepseekV3 supports only {format_short_value(theirs)} for "
        f"model.{field}, but it is {format_short_value(ours)}"
    )
    return build_size_problem(
        field, message, f"use {format_short_value(theirs)}, or disable the export"
    )


def read_deepseek_v3_experts(file: HuggingFaceConfigReader) -> Sizes:
    """Return model.moe of a config.json."""
    file.take_one_allowed("scoring_func", "sigmoid")
    file.take_one_allowed("topk_method", "noaux_tc")
    groups = file.take_positive_int("n_group", 8)
    limited = file.take_positive_int("topk_group", 4)
    return {
        "num_experts": file.take_positive_int("n_routed_experts", 256),
        "top_k": file.take_positive_int("num_experts_per_tok", 8),
        "hidden_dim": file.take_positive_int("moe_intermediate_size", 2048),
        "num_shared_experts": file.take_positive_int("n_shared_experts", 1),
        "route_norm": file.take_bool("norm_topk_prob", True),
        "route_scale": file.take_positive_float("routed_scaling_factor", 2.5),
        # groups without a limit are no restriction
        "num_expert_groups": None if groups == limited else groups,
        "num_limited_groups": None if groups == limited else limited,
        "load_balance_coeff": PAPER_LOAD_BALANCE_COEFF,
        **TRANSFORMERS_EXPERT_SIZES,
    }
