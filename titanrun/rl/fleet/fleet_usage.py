"""Metrics of a fleet: who waited for whom, and what was lost."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class FleetUsage:
    """Counts since the last collection, and losses since the start of the run.

    Args:
        wait_seconds: time that the trainer waited for completions.
        push_seconds: time that the trainer spent on publishing weights.
    """

    wait_seconds: float = 0.0
    push_seconds: float = 0.0
    num_lost: int = 0
    num_restarts: int = 0
    busy_seconds: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    interval_start: float = field(default_factory=time.monotonic)

    def record_turn(self, number: int, message: Mapping[str, Any]) -> None:
        """Count the time and the tokens of a process's turn."""
        self.busy_seconds[number] += message.get("busy_seconds", 0.0)
        self.tokens[number] += message.get("tokens", 0)

    def collect(self, num_processes: int) -> dict[str, float]:
        """Return the metrics of the interval, and start the next."""
        now = time.monotonic()
        seconds = max(now - self.interval_start, 1e-9)
        busy = [min(1.0, self.busy_seconds[number] / seconds) for number in range(num_processes)]
        values = {
            "rl/trainer_idle_share": min(1.0, self.wait_seconds / seconds),
            "rl/push_share": min(1.0, self.push_seconds / seconds),
            "rl/generator_idle_share": 1.0 - sum(busy) / num_processes,
            "rl/lost_requests": float(self.num_lost),
            "rl/restarts": float(self.num_restarts),
        }
        for number in range(num_processes):
            values[f"rl/generator_idle_share/{number}"] = 1.0 - busy[number]
            values[f"rl/tokens_per_second/{number}"] = self.tokens[number] / seconds
        self.wait_seconds = self.push_seconds = 0.0
        self.busy_seconds, self.tokens, self.interval_start = Counter(), Counter(), now
        return values
