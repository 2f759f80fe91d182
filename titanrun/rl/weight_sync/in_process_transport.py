"""Weight transport within a process."""

from collections.abc import Iterator

import torch
from torch import Tensor

from titanrun.rl.weight_sync.transport import Weights, drop_old_versions


class InProcessTransport:
    """Copies of the last versions on the device of the weights."""

    def __init__(self, *, keep: int) -> None:
        self.keep = keep
        self._weights_by_version: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def publish(self, version: int, weights: Weights) -> None:
        """Copy the weights, because the trainer keeps writing to its own."""
        self._weights_by_version[version] = {
            name: tensor.detach().clone() for name, tensor in weights
        }
        drop_old_versions(self, self.keep)

    def list_versions(self) -> list[int]:
        """Return the versions that are held, ascending."""
        return sorted(self._weights_by_version)

    def pull(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the copies themselves."""
        yield from self._weights_by_version[version].items()

    def drop(self, version: int) -> None:
        """Free the memory of a version once no reader holds it."""
        del self._weights_by_version[version]

    def close(self) -> None:
        """Drop all versions."""
        self._weights_by_version.clear()
