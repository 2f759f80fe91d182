"""How weights get from the trainer to a generator: by version, each whole or not there at all, the last few kept."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

Weights = Iterable[tuple[str, Tensor]]


class WeightBus(Protocol):
    """Holds versions of the weights."""

    def publish(self, version: int, weights: Weights) -> None:
        """Takes a version in; nobody can pull it before it is whole. Reads `weights` to the end."""

    def versions(self) -> list[int]:
        """Those that can be pulled, ascending."""

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version, one at a time. Raises KeyError where it is gone."""

    def drop(self, version: int) -> None:
        """Forgets a version."""

    def close(self) -> None:
        """Lets go of everything."""


def as_sent(
    weights: Weights, *, dtype: torch.dtype, parameters: frozenset[str]
) -> Iterator[tuple[str, Tensor]]:
    """The weights as a generator computes with them: parameters in its dtype, buffers in their own; no copy where that is the same."""
    for name, tensor in weights:
        yield (
            name,
            tensor.to(dtype) if name in parameters and tensor.is_floating_point() else tensor,
        )


def drop_old(bus: WeightBus, keep: int) -> None:
    """Leaves the newest `keep` versions."""
    for version in bus.versions()[:-keep]:
        bus.drop(version)
