"""Engine whose state a rank of another replica group can take over."""

from typing import Any

import torch

from titanrun.distributed.dtensor import to_local
from titanrun.training.engine import Engine


class HealedEngine(Engine):
    """Engine with its state as parts of this rank, which equal ranks of all groups have."""

    def state_to_heal(self) -> dict[str, Any]:
        """Return this rank's parts of weights and optimizer state by name, without copies."""
        return self._get_state_parts()

    def _get_state_parts(self) -> dict[str, Any]:
        return {
            name: to_local(tensor.detach()) for name, tensor in self.named_state_tensors().items()
        }

    def heal(self, state: dict[str, Any]) -> None:
        """Take over the parts that the equal rank of another group returned."""
        own = self._get_state_parts()
        assert own.keys() == state.keys(), "all groups train one recipe"
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self.on_state_loaded()
