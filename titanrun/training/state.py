"""How far a run is: the counters that a checkpoint carries."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class TrainState:
    """Optimizer steps done, and input tokens that all ranks have consumed in them."""

    step: int = 0
    tokens_seen: int = 0

    def as_data(self) -> dict[str, int]:
        """Plain data for a checkpoint."""
        return asdict(self)

    def load(self, data: dict[str, Any]) -> None:
        """Takes over what `as_data` gave."""
        self.step = data["step"]
        self.tokens_seen = data["tokens_seen"]
