"""The slot `module`: what may stand in place of a part of the model; and the entries of `replace`, which say where."""

from typing import Any, ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import component, numerics
from titanrun.config.types import Text


class ModuleConfig(ComponentConfig):
    """Stands in place of a part of the model, with parameters of the same names and shapes.

    Without `init_weights` of its own it draws its first weights as the part it stands for.
    """

    slot: ClassVar = "module"
    is_slot: ClassVar = True
    name: str = numerics()
    computes_the_same: ClassVar[bool] = False
    """Whether it gives what the part it stands for would give, so that the model's export still is the model."""


class GatedFeedForwardConfig(ModuleConfig):
    """A feed-forward layer with a gate of another activation: w2(activation(w1 x) * w3 x) (https://arxiv.org/abs/2002.05202)."""

    name: Literal["gated_feed_forward"] = numerics("gated_feed_forward")
    builds: ClassVar = "titanrun.components.modules.gated_feed_forward:GatedFeedForward"
    activation: Literal["silu", "gelu", "relu", "squared_relu", "sigmoid"] = numerics("gelu")
    """What the gate goes through; silu is SwiGLU, which the model's own layers are."""


class MatchConfig(Config):
    """Which modules are replaced."""

    match: Text = numerics(examples=["layers.*.feed_forward"])
    """Names of modules; `*` is any one step of a name, or a part of it."""

    @property
    def replacement(self) -> ModuleConfig:
        """What the recipe has at `with`."""
        return getattr(self, "with")  # type: ignore[no-any-return]


def with_a_replacement() -> dict[str, Any]:
    """The field `with`, which no class body can declare: it is a word of Python."""
    return {"__module__": __name__, "__annotations__": {"with": ModuleConfig}, "with": component()}


class ReplaceConfig(MatchConfig):
    """Modules of the model, and what stands in their place."""

    vars().update(with_a_replacement())
