"""Configs of decoder-only families: sizes, derived quantities, and parameter shapes."""

from copy import deepcopy
from math import prod
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from titanrun.config.conflict import conflict_error
from titanrun.config.fields import numerics
from titanrun.config.problems import DataPath, Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    LayerCount,
    ModelConfig,
    MoeConfig,
    Sizes,
    find_moe_problems,
    unwrap_auto,
)

Shapes = dict[str, tuple[int, ...]]


class DecoderConfig(ModelConfig):
    """A decoder: layers of attention, and of SwiGLU or a mixture of experts.

    A family adds the sizes of its attention, and those of the sections `attention`, `rope`,
    `feed_forward`, `moe` and `init` that it has. It overrides `attention_shapes`,
    `attention_activation_elements`, and `has_experts` if its layers differ.
    """

    derived_fields: ClassVar[frozenset[DataPath]] = frozenset(
        {("init", "output_std"), ("attention", "backend")}
    )
    dim: OrAuto[PositiveInt] = numerics("auto", examples=[4096])
    """Width of the residual stream."""
    n_layers: OrAuto[LayerCount] = numerics("auto", examples=[32])
    """Number of decoder layers."""
    n_heads: OrAuto[PositiveInt] = numerics("auto", examples=[32])
    """Number of query heads."""
    norm_eps: OrAuto[PositiveFloat] = numerics("auto", examples=[1e-5])
    """Epsilon of every RMSNorm."""
    tie_word_embeddings: OrAuto[bool] = numerics("auto")
    """Whether the output head shares the embedding's matrix."""
    head: Literal["lm", "scalar"] = numerics("lm")
    """Output of each token. lm: logits of the next token. scalar: one number, the score of the text
    up to there, for reward models. A scalar head is not part of pretrained weights."""
    supports_scalar_head: ClassVar[bool] = True
    """Whether transformers has a class of the family with a scalar head."""

    @model_validator(mode="after")
    def check_head_is_own(self) -> Self:
        """Check that a scalar head is not tied to the embedding."""
        if self.head == "scalar" and self.tie_word_embeddings is True:
            message = "a scalar head cannot share the embedding's matrix"
            raise conflict_error(
                message, "tie_word_embeddings", "head", hint="remove tie_word_embeddings"
            )
        return self

    @classmethod
    def fill_derived_sizes(cls, sizes: Sizes) -> Sizes:
        """Fill std of the output head and back end if undecided, and separate a scalar head."""
        sizes = deepcopy(sizes)
        attention = sizes.get("attention", {})
        if attention.get("backend") == AUTO:
            attention["backend"] = choose_attention_backend(attention)
        if sizes["head"] == "scalar":
            sizes["tie_word_embeddings"] = False
        if sizes["init"]["output_std"] == AUTO and sizes["dim"] != AUTO:
            sizes["init"]["output_std"] = sizes["dim"] ** -0.5
        return sizes

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find invalid sizes of experts."""
        moe = sizes.get("moe")
        # the family of a plug-in may have other experts
        return (
            find_moe_problems(moe)
            if isinstance(moe, dict) and MoeConfig.model_fields.keys() <= moe.keys()
            else []
        )

    def attention_shapes(self) -> Shapes:
        """Return name and shape of every parameter of one layer's attention.

        Names begin with `attention.`.
        """
        raise NotImplementedError

    def attention_activation_elements(self) -> int:
        """Return the elements that attention keeps per token for its backward pass.

        Only elements that tensor-parallel ranks split are counted.
        """
        raise NotImplementedError

    def find_moe_config(self) -> MoeConfig | None:
        """Return the mixture of experts of the layers that have one, or None if dense."""
        moe = unwrap_auto(getattr(self, "moe", None))
        return moe if isinstance(moe, MoeConfig) else None

    def has_experts(self, layer: int) -> bool:
        """Return whether the feed-forward part of a layer is a mixture of experts."""
        return self.find_moe_config() is not None

    def parameter_shapes(self) -> Shapes:
        """Return name and shape of every parameter, in the model's order.

        A tied head is not listed.
        """
        dim, vocab_size = unwrap_auto(self.dim), unwrap_auto(self.vocab_size)
        shapes: Shapes = {"tok_embeddings.weight": (vocab_size, dim)}
        shapes_by_kind = {
            kind: self.layer_shapes(has_experts=kind)
            for kind in {self.has_experts(index) for index in range(self.layer_count())}
        }
        for index in range(self.layer_count()):
            layer_shapes = shapes_by_kind[self.has_experts(index)] | self.extra_layer_shapes(index)
            shapes.update({f"layers.{index}.{name}": shape for name, shape in layer_shapes.items()})
        shapes["norm.weight"] = (dim,)
        if not unwrap_auto(self.tie_word_embeddings):
            shapes["output.weight"] = (self.output_dim(), dim)
        return shapes

    def buffer_shapes(self) -> Shapes:
        """Return name and shape of every buffer in a checkpoint: the biases of load balancing."""
        moe = self.find_moe_config()
        if moe is None or unwrap_auto(moe.load_balance_coeff) is None:
            return {}
        layers = filter(self.has_experts, range(self.layer_count()))
        return {
            f"layers.{layer}.moe.expert_bias": (unwrap_auto(moe.num_experts),) for layer in layers
        }

    def layer_shapes(self, *, has_experts: bool) -> Shapes:
        """Return name and shape of every parameter of one layer."""
        dim = unwrap_auto(self.dim)
        hidden = self.expert_shapes() if has_experts else self.feed_forward_shapes()
        return {
            **self.attention_shapes(),
            **hidden,
            "attention_norm.weight": (dim,),
            "ffn_norm.weight": (dim,),
        }

    def extra_layer_shapes(self, layer: int) -> Shapes:
        """Return further parameters of a layer, other than attention, feed-forward and norms."""
        return {}

    def feed_forward_shapes(self) -> Shapes:
        """Return name and shape of every parameter of a dense layer's SwiGLU."""
        return get_swiglu_shapes(
            "feed_forward.w{}.weight", unwrap_auto(self.dim), self.dense_hidden_dim()
        )

    def expert_shapes(self) -> Shapes:
        """Return name and shape of every parameter of a mixture of experts."""
        moe, dim = self.find_moe_config(), unwrap_auto(self.dim)
        assert moe is not None
        experts, hidden = unwrap_auto(moe.num_experts), unwrap_auto(moe.hidden_dim)
        shapes: Shapes = {"moe.router.gate.weight": (experts, dim)}
        if unwrap_auto(moe.gate_bias):
            shapes["moe.router.gate.bias"] = (experts,)
        shapes |= {
            name: (experts, *shape)
            for name, shape in get_swiglu_shapes("moe.experts.w{}", dim, hidden).items()
        }
        shared = unwrap_auto(moe.num_shared_experts) * hidden
        return shapes | (
            get_swiglu_shapes("moe.shared_experts.w{}.weight", dim, shared) if shared else {}
        )

    def dense_hidden_dim(self) -> int:
        """Return the hidden width of a dense layer."""
        section: Any = getattr(self, "feed_forward", None)
        return int(unwrap_auto(section.hidden_dim))

    def output_dim(self) -> int:
        """Return the number of outputs per token: 1 of a scalar head, else logits."""
        return 1 if self.head == "scalar" else super().output_dim()

    def model_dim(self) -> int:
        """Return the width of the residual stream."""
        return unwrap_auto(self.dim)

    def layer_activation_elements(self) -> tuple[int, int]:
        """Return the elements that a layer keeps per token: stream width, and split by ranks.

        Of layers with and without experts it is the kind that keeps most.
        """
        return max(
            map(
                self.activation_elements_by_layer_kind,
                {self.has_experts(layer) for layer in range(self.layer_count())},
            ),
            key=sum,
        )

    def activation_elements_by_layer_kind(self, has_experts: bool) -> tuple[int, int]:
        """Return `layer_activation_elements` of a layer with or without experts.

        These are inputs and outputs of both norms, those of attention, and gate, activated gate,
        value and their product. Each expert also keeps the token before and after it.
        """
        dim, moe = unwrap_auto(self.dim), self.find_moe_config()
        if moe is None or not has_experts:
            return 4 * dim, self.attention_activation_elements() + 4 * self.dense_hidden_dim()
        top_k = unwrap_auto(moe.top_k)
        hidden = (top_k + unwrap_auto(moe.num_shared_experts)) * unwrap_auto(moe.hidden_dim)
        return (4 + 2 * top_k) * dim, self.attention_activation_elements() + 4 * hidden

    def expert_layer_count(self) -> int:
        """Return the number of layers that are mixtures of experts."""
        return sum(map(self.has_experts, range(self.layer_count())))

    def inactive_parameter_count(self) -> int:
        """Return the parameters of experts to which a token is not sent.

        Only weights stacked along a dim that counts experts are included.
        """
        moe = self.find_moe_config()
        if moe is None:
            return 0
        experts, top_k = unwrap_auto(moe.num_experts), unwrap_auto(moe.top_k)
        stacked = sum(
            prod(shape)
            for name, shape in self.expert_shapes().items()
            if name.startswith("moe.experts.")
        )
        return self.expert_layer_count() * (stacked // experts) * (experts - top_k)


class GroupedQueryConfig(DecoderConfig):
    """A decoder in which groups of query heads share a key and value head."""

    n_kv_heads: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Number of key and value heads. n_heads must be a multiple of it."""
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head. n_heads times it may differ from dim."""

    @classmethod
    def find_size_problems(cls, sizes: Sizes) -> list[Problem]:
        """Find odd heads, heads that cannot be shared, and invalid sizes of experts."""
        problems = []
        n_heads, n_kv_heads, head_dim = sizes["n_heads"], sizes["n_kv_heads"], sizes["head_dim"]
        if head_dim != AUTO and head_dim % 2:
            problems.append(
                build_size_problem(
                    "head_dim",
                    f"head_dim {head_dim} is odd, but RoPE rotates pairs",
                    "use an even head_dim",
                )
            )
        if AUTO not in (n_heads, n_kv_heads) and n_heads % n_kv_heads:
            message = f"n_heads {n_heads} is not divisible by n_kv_heads {n_kv_heads}"
            problems.append(
                build_size_problem(
                    "n_kv_heads", message, f"set n_kv_heads to a divisor of {n_heads}"
                )
            )
        return problems + super().find_size_problems(sizes)

    def projection_dims(self) -> tuple[int, int]:
        """Return the width of all queries, and of all keys or values."""
        head_dim = unwrap_auto(self.head_dim)
        return unwrap_auto(self.n_heads) * head_dim, unwrap_auto(self.n_kv_heads) * head_dim

    def attention_shapes(self) -> Shapes:
        """Return name and shape of the four projections of one layer's attention."""
        dim, (q_width, kv_width) = unwrap_auto(self.dim), self.projection_dims()
        return {
            "attention.wq.weight": (q_width, dim),
            "attention.wk.weight": (kv_width, dim),
            "attention.wv.weight": (kv_width, dim),
            "attention.wo.weight": (dim, q_width),
        }

    def attention_activation_elements(self) -> int:
        """Return the elements of queries, keys, values and outputs per token.

        Outputs count twice: as the kernel returns them and as the projection takes them.
        """
        q_width, kv_width = self.projection_dims()
        return 3 * q_width + 2 * kv_width

    def kv_dim(self) -> int:
        """Return the width of keys plus values of all heads of one layer."""
        return 2 * self.projection_dims()[1]

    def attention_dim(self) -> int:
        """Return key width plus value width of all query heads of all layers."""
        return self.layer_count() * unwrap_auto(self.n_heads) * 2 * unwrap_auto(self.head_dim)


def build_size_problem(field: str, message: str, hint: str) -> Problem:
    """Build the problem of two conflicting sizes, located at `field` of the model section."""
    return Problem("conflict", message, ("model", *field.split(".")), hint=hint)


def get_swiglu_shapes(name: str, dim: int, hidden: int) -> Shapes:
    """Return the shapes of the three matrices of SwiGLU. `name` has {} for their number."""
    return {
        name.format(1): (hidden, dim),
        name.format(2): (dim, hidden),
        name.format(3): (hidden, dim),
    }


def find_rope_problems(rope: Sizes) -> list[Problem]:
    """Find conflicts in model.rope.

    These are a ramp that runs backwards, and a base without frequencies to ramp over.
    """
    scaling, theta = rope["scaling"], rope["theta"]
    kind = scaling["name"] if isinstance(scaling, dict) else None
    if kind == "llama3" and scaling["high_freq_factor"] < scaling["low_freq_factor"]:
        message = (
            f"high_freq_factor {scaling['high_freq_factor']} is below low_freq_factor "
            f"{scaling['low_freq_factor']}"
        )
        return [build_size_problem("rope.scaling.high_freq_factor", message, "swap the two")]
    if kind == "yarn" and scaling["beta_fast"] < scaling["beta_slow"]:
        message = f"beta_fast {scaling['beta_fast']} is below beta_slow {scaling['beta_slow']}"
        return [build_size_problem("rope.scaling.beta_fast", message, "swap the two")]
    if kind == "yarn" and theta != AUTO and theta <= 1:
        return [
            build_size_problem(
                "rope.theta",
                f"YaRN needs decreasing frequencies, but theta is {theta}",
                "use a theta above 1",
            )
        ]
    return []


def choose_attention_backend(attention: Sizes) -> str:
    """Return the back end that skips masked scores, for a mask that is more than causal."""
    is_plain = attention["mask"] == "causal" and attention.get("window") is None
    return "sdpa" if is_plain else "flex"
