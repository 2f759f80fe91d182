"""Protocol of weight transports from trainer to generator.

Weights are versioned. A version is complete or absent, and the last few versions are kept.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

Weights = Iterable[tuple[str, Tensor]]


class WeightTransport(Protocol):
    """Store of weight versions."""

    def publish(self, version: int, weights: Weights) -> None:
        """Store a version, consuming `weights`. It cannot be pulled before it is complete."""

    def list_versions(self) -> list[int]:
        """Return the versions that can be pulled, ascending."""

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a version, one tensor at a time.

        Raises:
            KeyError: the version does not exist any more.
        """

    def drop(self, version: int) -> None:
        """Remove a version."""

    def close(self) -> None:
        """Release all resources."""


def cast_for_generator(
    weights: Weights, *, dtype: torch.dtype, parameter_names: frozenset[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters in the generator's dtype and buffers in their own.

    Tensors that already have the dtype are not copied.
    """
    for name, tensor in weights:
        yield (
            name,
            tensor.to(dtype) if name in parameter_names and tensor.is_floating_point() else tensor,
        )


def drop_old_versions(transport: WeightTransport, keep: int) -> None:
    """Drop all but the newest `keep` versions."""
    for version in transport.list_versions()[:-keep]:
        transport.drop(version)
