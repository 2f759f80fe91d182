"""Progress counters of a run, stored in checkpoints."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class TrainState:
    """Optimizer steps done, and input tokens consumed by all ranks in these steps."""

    step: int = 0
    tokens_seen: int = 0

    def to_dict(self) -> dict[str, int]:
        """Return the counters as plain data for a checkpoint."""
        return asdict(self)

    def load_dict(self, data: dict[str, Any]) -> None:
        """Restore the counters that `to_dict` returned."""
        self.step = data["step"]
        self.tokens_seen = data["tokens_seen"]
