"""Report of a converter: converted modules, skipped ones with reasons, and a listener."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from titanrun.components.converters.spec.module_names import collapse_layer_numbers

WeightsListener = Callable[[nn.Module], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """Result of a converter for each examined module.

    Args:
        converted: Names of the converted modules.
        skipped: Names of the skipped modules, each with the reason.
        kind: Short description of the conversion.
        on_weights_changed: Called with the model whenever its weights have changed, as after each
            optimizer step.
    """

    converted: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    on_weights_changed: WeightsListener | None = None

    @property
    def summary(self) -> str:
        """Text such as `7 modules (layers.*.attention.wq, ...); skipped output: its name ...`."""
        words = f"{len(self.converted)} {'module' if len(self.converted) == 1 else 'modules'}"
        words += f" ({', '.join(collapse_layer_numbers(self.converted))})" if self.converted else ""
        reasons = dict.fromkeys(self.skipped.values())
        left = [
            ", ".join(
                collapse_layer_numbers(name for name in self.skipped if self.skipped[name] == why)
            )
            + f": {why}"
            for why in reasons
        ]
        return "; ".join([words, *(f"skipped {each}" for each in left)])


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replace the module `name` by `module`."""
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
