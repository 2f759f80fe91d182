"""What configs of decoder-only families share: sizes, what follows from them, and the shapes of the usual parameters."""

from copy import deepcopy
from math import prod
from typing import Any, ClassVar

from titanrun.config.fields import numerics
from titanrun.config.problems import DataPath, Problem
from titanrun.config.types import AUTO, OrAuto, PositiveFloat, PositiveInt
from titanrun.models.shared.config import (
    LayerCount,
    ModelConfig,
    MoeConfig,
    Sizes,
    decided,
    moe_conflicts,
)

Shapes = dict[str, tuple[int, ...]]


class DecoderConfig(ModelConfig):
    """A decoder: layers of attention and a hidden part, which is SwiGLU or a mixture of experts.

    A family adds the sizes of its attention, and the sections `attention`, `rope`, `feed_forward`, `moe` and `init` that it has, and
    says what is its own: `attention_shapes`, `kept_by_attention`, and where layers differ, `has_experts`.
    """

    follows: ClassVar[frozenset[DataPath]] = frozenset({("init", "output_std")})
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

    @classmethod
    def derived(cls, sizes: Sizes) -> Sizes:
        """The output head's std, where it is undecided."""
        sizes = deepcopy(sizes)
        if sizes["init"]["output_std"] == AUTO and sizes["dim"] != AUTO:
            sizes["init"]["output_std"] = sizes["dim"] ** -0.5
        return sizes

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Experts that cannot be chosen."""
        moe = sizes.get("moe")
        # a plug-in's family may have experts of another kind
        return (
            moe_conflicts(moe)
            if isinstance(moe, dict) and MoeConfig.model_fields.keys() <= moe.keys()
            else []
        )

    def attention_shapes(self) -> Shapes:
        """Name and shape of every parameter of one layer's attention, `attention.` in front."""
        raise NotImplementedError

    def kept_by_attention(self) -> int:
        """Elements that tensor-parallel ranks split, of those a layer's attention keeps of each token for its backward pass."""
        raise NotImplementedError

    def experts(self) -> MoeConfig | None:
        """The mixture of experts of the layers that have one; None for a dense model."""
        moe = decided(getattr(self, "moe", None))
        return moe if isinstance(moe, MoeConfig) else None

    def has_experts(self, layer: int) -> bool:
        """Whether the hidden part of a layer is a mixture of experts."""
        return self.experts() is not None

    def parameter_shapes(self) -> Shapes:
        """Name and shape of every parameter, in the model's order; a tied head is not listed."""
        dim, vocab_size = decided(self.dim), decided(self.vocab_size)
        shapes: Shapes = {"tok_embeddings.weight": (vocab_size, dim)}
        of_kind = {
            kind: self.layer_shapes(with_experts=kind)
            for kind in {self.has_experts(index) for index in range(self.layer_count())}
        }
        for index in range(self.layer_count()):
            of_layer = of_kind[self.has_experts(index)] | self.shapes_beside(index)
            shapes.update({f"layers.{index}.{name}": shape for name, shape in of_layer.items()})
        shapes["norm.weight"] = (dim,)
        if not decided(self.tie_word_embeddings):
            shapes["output.weight"] = (vocab_size, dim)
        return shapes

    def buffer_shapes(self) -> Shapes:
        """Name and shape of every tensor of a checkpoint that is no parameter: the biases that balance experts."""
        moe = self.experts()
        if moe is None or decided(moe.load_balance_coeff) is None:
            return {}
        layers = filter(self.has_experts, range(self.layer_count()))
        return {f"layers.{layer}.moe.expert_bias": (decided(moe.num_experts),) for layer in layers}

    def layer_shapes(self, *, with_experts: bool) -> Shapes:
        """Name and shape of every parameter of one layer."""
        dim = decided(self.dim)
        hidden = self.expert_shapes() if with_experts else self.feed_forward_shapes()
        return {
            **self.attention_shapes(),
            **hidden,
            "attention_norm.weight": (dim,),
            "ffn_norm.weight": (dim,),
        }

    def shapes_beside(self, layer: int) -> Shapes:
        """Name and shape of what a layer has beside attention, hidden part and their norms."""
        return {}

    def feed_forward_shapes(self) -> Shapes:
        """Name and shape of every parameter of a dense layer's SwiGLU."""
        return swiglu_shapes("feed_forward.w{}.weight", decided(self.dim), self.dense_width())

    def expert_shapes(self) -> Shapes:
        """Name and shape of every parameter of a mixture of experts."""
        moe, dim = self.experts(), decided(self.dim)
        assert moe is not None
        experts, hidden = decided(moe.num_experts), decided(moe.hidden_dim)
        shapes: Shapes = {"moe.router.gate.weight": (experts, dim)}
        if decided(moe.gate_bias):
            shapes["moe.router.gate.bias"] = (experts,)
        shapes |= {
            name: (experts, *shape)
            for name, shape in swiglu_shapes("moe.experts.w{}", dim, hidden).items()
        }
        shared = decided(moe.num_shared_experts) * hidden
        return shapes | (
            swiglu_shapes("moe.shared_experts.w{}.weight", dim, shared) if shared else {}
        )

    def dense_width(self) -> int:
        """Hidden width of a dense layer."""
        section: Any = getattr(self, "feed_forward", None)
        return int(decided(section.hidden_dim))

    def stream_width(self) -> int:
        """Width of the residual stream."""
        return decided(self.dim)

    def kept_widths(self) -> tuple[int, int]:
        """What a layer keeps of each token: as wide as the stream, and split by tensor parallelism; of the kind that keeps most."""
        return max(
            map(
                self.kept_by_kind, {self.has_experts(layer) for layer in range(self.layer_count())}
            ),
            key=sum,
        )

    def kept_by_kind(self, with_experts: bool) -> tuple[int, int]:
        """`kept_widths` of a layer of SwiGLU or of experts: the inputs and outputs of both norms; what attention keeps; gate, activated
        gate, value and their product. Each expert keeps the token before and after it as well."""
        dim, moe = decided(self.dim), self.experts()
        if moe is None or not with_experts:
            return 4 * dim, self.kept_by_attention() + 4 * self.dense_width()
        top_k = decided(moe.top_k)
        hidden = (top_k + decided(moe.num_shared_experts)) * decided(moe.hidden_dim)
        return (4 + 2 * top_k) * dim, self.kept_by_attention() + 4 * hidden

    def expert_layer_count(self) -> int:
        """Layers that are mixtures of experts."""
        return sum(map(self.has_experts, range(self.layer_count())))

    def idle_parameter_count(self) -> int:
        """Parameters of the experts that a token is not sent to: those stacked along a dim that counts experts."""
        moe = self.experts()
        if moe is None:
            return 0
        experts, top_k = decided(moe.num_experts), decided(moe.top_k)
        stacked = sum(
            prod(shape)
            for name, shape in self.expert_shapes().items()
            if name.startswith("moe.experts.")
        )
        return self.expert_layer_count() * (stacked // experts) * (experts - top_k)


class GroupedQueryConfig(DecoderConfig):
    """A decoder in whose attention groups of query heads share a key and value head."""

    n_kv_heads: OrAuto[PositiveInt] = numerics("auto", examples=[8])
    """Number of key and value heads; n_heads must be a multiple of it."""
    head_dim: OrAuto[PositiveInt] = numerics("auto", examples=[128])
    """Width of one head; n_heads times it may differ from dim."""

    @classmethod
    def conflicts(cls, sizes: Sizes) -> list[Problem]:
        """Odd heads that RoPE cannot turn, heads that cannot be shared, and experts that cannot be chosen."""
        problems = []
        n_heads, n_kv_heads, head_dim = sizes["n_heads"], sizes["n_kv_heads"], sizes["head_dim"]
        if head_dim != AUTO and head_dim % 2:
            problems.append(
                conflict(
                    "head_dim",
                    f"head_dim {head_dim} is odd, and RoPE turns pairs",
                    "use an even head_dim",
                )
            )
        if AUTO not in (n_heads, n_kv_heads) and n_heads % n_kv_heads:
            message = f"{n_heads} query heads cannot share {n_kv_heads} key and value heads evenly"
            problems.append(
                conflict("n_kv_heads", message, f"make n_kv_heads a divisor of {n_heads}")
            )
        return problems + super().conflicts(sizes)

    def projection_widths(self) -> tuple[int, int]:
        """Width of all queries, and of all keys or values."""
        head_dim = decided(self.head_dim)
        return decided(self.n_heads) * head_dim, decided(self.n_kv_heads) * head_dim

    def attention_shapes(self) -> Shapes:
        """Name and shape of the four projections of one layer's attention."""
        dim, (q_width, kv_width) = decided(self.dim), self.projection_widths()
        return {
            "attention.wq.weight": (q_width, dim),
            "attention.wk.weight": (kv_width, dim),
            "attention.wv.weight": (kv_width, dim),
            "attention.wo.weight": (dim, q_width),
        }

    def kept_by_attention(self) -> int:
        """Queries, keys, values, and the output as the kernel gives it and as the projection takes it."""
        q_width, kv_width = self.projection_widths()
        return 3 * q_width + 2 * kv_width

    def key_value_width(self) -> int:
        """Width of the keys of all heads of one layer, plus that of the values."""
        return 2 * self.projection_widths()[1]

    def attention_width(self) -> int:
        """Key width plus value width of all query heads of all layers."""
        return self.layer_count() * decided(self.n_heads) * 2 * decided(self.head_dim)


def conflict(field: str, message: str, help: str) -> Problem:
    """Two sizes that exclude each other, shown at `field` of the model section."""
    return Problem("conflict", message, ("model", *field.split(".")), help=help)


def swiglu_shapes(name: str, dim: int, hidden: int) -> Shapes:
    """The three matrices of a SwiGLU layer; `name` has {} for their number."""
    return {
        name.format(1): (hidden, dim),
        name.format(2): (dim, hidden),
        name.format(3): (hidden, dim),
    }


def rope_conflicts(rope: Sizes) -> list[Problem]:
    """What cannot be true together in model.rope: a ramp that runs backwards, and a base without frequencies to ramp over."""
    scaling, theta = rope["scaling"], rope["theta"]
    kind = scaling["name"] if isinstance(scaling, dict) else None
    if kind == "llama3" and scaling["high_freq_factor"] < scaling["low_freq_factor"]:
        message = f"high_freq_factor {scaling['high_freq_factor']} is below low_freq_factor {scaling['low_freq_factor']}"
        return [conflict("rope.scaling.high_freq_factor", message, "exchange the two")]
    if kind == "yarn" and scaling["beta_fast"] < scaling["beta_slow"]:
        message = f"beta_fast {scaling['beta_fast']} is below beta_slow {scaling['beta_slow']}"
        return [conflict("rope.scaling.beta_fast", message, "exchange the two")]
    if kind == "yarn" and theta != AUTO and theta <= 1:
        return [
            conflict(
                "rope.theta",
                f"YaRN ramps over falling frequencies, and theta {theta} makes none",
                "use a theta above 1",
            )
        ]
    return []
