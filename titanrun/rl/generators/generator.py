"""What the rest of titanrun asks of a generator."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from titanrun.rl.generators.as_trained import AsTrained
from titanrun.rl.generators.config import SamplingConfig
from titanrun.rl.samples import Completion, Request


@dataclass(frozen=True, slots=True)
class Beside:
    """What a generator in a process of its own is started with.

    Args:
        recipe: the text of the resolved recipe.
        dtype: that it computes in, by name.
        longest: tokens of a conversation.
        log: the file that it writes to.
        device: which accelerator of the machine is this rank's.
    """

    recipe: str
    dtype: str
    longest: int
    log: Path
    device: int


@dataclass(frozen=True, slots=True)
class Supplies:
    """What a generator is built from.

    Args:
        model: makes a model of the policy's kind, the generator's own, in its dtype; told whether tensor-parallel ranks split it.
        sampling: how tokens are chosen.
        end_ids: tokens after which nothing follows.
        encode: text to ids, the end of an answer included.
        autocast: what passes run in.
        beside: for one in a process of its own.
        reread: computes each next token from all before it, as a trainer does, instead of from remembered keys; None: keys are remembered.
    """

    model: Callable[[bool], Any]
    sampling: SamplingConfig
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]
    autocast: Callable[[], AbstractContextManager[object]]
    beside: Beside
    reread: AsTrained | None = None


class Generator(Protocol):
    """Answers prompts with the weights of one version of the policy."""

    version: int

    def generate(
        self, requests: Sequence[Request], *, temperature: float | None = None
    ) -> list[Completion]:
        """What follows each prompt; `temperature` in the place of the recipe's."""

    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Takes new weights, all of them by name, one at a time."""

    def close(self) -> None:
        """Lets go of what it holds."""
