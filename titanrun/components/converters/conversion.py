"""What a converter says of its work: the modules it took, those it left and why, and what is to be done when weights change."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

OnNewWeights = Callable[[nn.Module], None]
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What became of each module that the converter looked at.

    Args:
        taken: names of the modules that it rewrote.
        left: names of the others, each with the reason.
        kind: what it did to them, in a few words.
        on_new_weights: called with the model whenever its weights have changed, as after each optimizer step.
    """

    taken: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    on_new_weights: OnNewWeights | None = None

    @property
    def summary(self) -> str:
        """`7 modules (layers.*.attention.wq, ...); left output: its name has 'output' in it`."""
        words = f"{len(self.taken)} {'module' if len(self.taken) == 1 else 'modules'}"
        words += f" ({', '.join(families(self.taken))})" if self.taken else ""
        reasons = dict.fromkeys(self.left.values())
        left = [
            f"{', '.join(families(name for name in self.left if self.left[name] == why))}: {why}"
            for why in reasons
        ]
        return "; ".join([words, *(f"left {each}" for each in left)])


def families(names: Iterable[str]) -> list[str]:
    """The names with `*` for the number of a layer, each once."""
    return list(dict.fromkeys(NUMBER.sub("*", name) for name in names))


def replace_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Puts `module` where `name` is."""
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
