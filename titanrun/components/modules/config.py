"""The slot `module` for replacements of parts of the model, and the entries of `replace`."""

from typing import Any, ClassVar, Literal

from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import component, numerics
from titanrun.config.types import Text


class ModuleConfig(ComponentConfig):
    """Replacement of a part of the model, with parameters of the same names and shapes.

    Without a method `init_weights`, it is initialized as the part that it replaces.
    """

    slot: ClassVar = "module"
    is_slot: ClassVar = True
    builds_what: ClassVar = "a torch.nn.Module"
    built_attributes: ClassVar = ("forward", "named_parameters")
    name: str = numerics()
    is_equivalent: ClassVar[bool] = False
    """Whether its outputs equal those of the part that it replaces, so that the model can be
    exported."""


class GatedFeedForwardConfig(ModuleConfig):
    """A feed-forward layer with another gate activation: w2(activation(w1 x) * w3 x).

    See https://arxiv.org/abs/2002.05202.
    """

    name: Literal["gated_feed_forward"] = numerics("gated_feed_forward")
    builds: ClassVar = "titanrun.components.modules.gated_feed_forward:GatedFeedForward"
    activation: Literal["silu", "gelu", "relu", "squared_relu", "sigmoid"] = numerics("gelu")
    """Activation of the gate. silu is SwiGLU, as in the model's own layers."""


class MatchConfig(Config):
    """Selection of the modules to replace."""

    match: Text = numerics(examples=["layers.*.feed_forward"])
    """Pattern of module names. `*` is one component of a name, or a part of it."""

    @property
    def replacement(self) -> ModuleConfig:
        """Module config at `with` in the recipe."""
        return getattr(self, "with")  # type: ignore[no-any-return]


def build_with_field() -> dict[str, Any]:
    """Return the field `with`, which no class body can declare: it is a Python keyword."""
    return {"__module__": __name__, "__annotations__": {"with": ModuleConfig}, "with": component()}


class ReplaceConfig(MatchConfig):
    """Modules of the model, and their replacement."""

    vars().update(build_with_field())
