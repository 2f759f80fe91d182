"""Metrics of a fleet: who waited for whom, and what was lost."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titanrun.rl.fleet.step_clock import StepClock, StepPhase

# shares of a trainer's step by phase. They add up to 1
SHARES: Mapping[StepPhase, str] = {
    "idle": "rl/trainer_idle_share",
    "pack": "rl/pack_share",
    "train": "rl/train_share",
    "push": "rl/push_share",
    "other": "rl/unaccounted_share",
}


@dataclass(slots=True)
class FleetUsage:
    """Counts since the last collection, and losses since the start of the run.

    Validation counts neither as time nor as work.

    Args:
        clock: the trainer's.
    """

    clock: StepClock = field(default_factory=StepClock)
    num_lost: int = 0
    num_restarts: int = 0
    busy_seconds: Counter[int] = field(default_factory=Counter)
    load_seconds: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)

    def record_turn(self, number: int, message: Mapping[str, Any]) -> None:
        """Count the time and the tokens of a process's turn."""
        self.busy_seconds[number] += message.get("busy_seconds", 0.0)
        self.load_seconds[number] += message.get("load_seconds", 0.0)
        self.tokens[number] += message.get("tokens", 0)

    def collect(self, num_processes: int) -> dict[str, float]:
        """Return the metrics of the interval, and start the next."""
        phases = self.clock.pop_seconds()
        seconds = max(sum(phases[phase] for phase in SHARES), 1e-9)
        busy = [min(1.0, self.busy_seconds[number] / seconds) for number in range(num_processes)]
        values = {name: phases[phase] / seconds for phase, name in SHARES.items()} | {
            "rl/generator_idle_share": 1.0 - sum(busy) / num_processes,
            "rl/tokens_per_second/generated": self.tokens.total() / seconds,
            "rl/load_seconds": sum(self.load_seconds.values()) / num_processes,
            "rl/lost_requests": float(self.num_lost),
            "rl/restarts": float(self.num_restarts),
        }
        for number in range(num_processes):
            values[f"rl/generator_idle_share/{number}"] = 1.0 - busy[number]
            values[f"rl/tokens_per_second/{number}"] = self.tokens[number] / seconds
        self.busy_seconds, self.load_seconds, self.tokens = Counter(), Counter(), Counter()
        return values
