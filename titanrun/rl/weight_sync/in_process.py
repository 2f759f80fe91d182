"""Weights handed over within a process."""

from collections.abc import Iterator

import torch
from torch import Tensor

from titanrun.rl.weight_sync.bus import Weights, drop_old


class InProcessBus:
    """Copies of the last versions, on the device of the weights."""

    def __init__(self, *, keep: int) -> None:
        self.keep = keep
        self._held: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def publish(self, version: int, weights: Weights) -> None:
        """Copies: the trainer goes on writing to its own."""
        self._held[version] = {name: tensor.detach().clone() for name, tensor in weights}
        drop_old(self, self.keep)

    def versions(self) -> list[int]:
        """Those that are held."""
        return sorted(self._held)

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The copies themselves."""
        yield from self._held[version].items()

    def drop(self, version: int) -> None:
        """Frees the memory once nobody reads it."""
        del self._held[version]

    def close(self) -> None:
        """Drops all."""
        self._held.clear()
