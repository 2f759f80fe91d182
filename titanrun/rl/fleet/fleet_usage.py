"""Metrics of a fleet: who waited for whom, and what was lost."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from titanrun.rl.fleet.step_clock import StepClock, StepPhase

# shares of a trainer's step by phase. They add up to 1
SHARES: Mapping[StepPhase, str] = {
    "idle": "rl/trainer_idle_share",
    "pull": "rl/pull_wait_share",
    "train": "rl/train_share",
    "push": "rl/push_wait_share",
    "other": "rl/unaccounted_share",
}


@dataclass(slots=True)
class FleetUsage:
    """Counts since the last collection, and losses since the start of the run.

    Validation counts neither as time nor as work.

    Args:
        clock: the trainer's.

    Attributes:
        gather_seconds: time in which the trainer gathered weights to publish.
        num_future: groups of weights that a restart has discarded.
        busy_seconds: time in which each process had groups.
        busy_since: since when each has some that is not counted yet, by the clock.
    """

    clock: StepClock = field(default_factory=StepClock)
    num_lost: int = 0
    num_restarts: int = 0
    num_future: int = 0
    gather_seconds: float = 0.0
    busy_seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    busy_since: dict[int, float] = field(default_factory=dict)
    load_seconds: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)

    def record_turn(self, number: int, message: Mapping[str, Any]) -> None:
        """Count the tokens of a process's turn, and the time it took to load weights."""
        self.load_seconds[number] += message.get("load_seconds", 0.0)
        self.tokens[number] += message.get("tokens", 0)

    def record_groups(self, number: int, *, has_groups: bool) -> None:
        """Count the time of a process so far, which has groups from now on or not."""
        now = self.clock.training_seconds
        self.busy_seconds[number] += now - self.busy_since.pop(number, now)
        if has_groups:
            self.busy_since[number] = now

    def collect(self, num_processes: int, *, num_tokens: int) -> dict[str, float]:
        """Return the metrics of the interval, and start the next.

        Args:
            num_processes: processes of the fleet.
            num_tokens: tokens that were trained on.
        """
        for number in list(self.busy_since):
            self.record_groups(number, has_groups=True)
        phases = self.clock.pop_seconds()
        seconds = max(sum(phases[phase] for phase in SHARES), 1e-9)
        busy = [min(1.0, self.busy_seconds[number] / seconds) for number in range(num_processes)]
        values = {name: phases[phase] / seconds for phase, name in SHARES.items()} | {
            "rl/generator_idle_share": 1.0 - sum(busy) / num_processes,
            "rl/tokens_per_second/generated": self.tokens.total() / seconds,
            "rl/tokens_per_second/trained": num_tokens / seconds,
            "rl/gather_seconds": self.gather_seconds,
            "rl/load_seconds": sum(self.load_seconds.values()) / num_processes,
            "rl/lost_requests": float(self.num_lost),
            "rl/restarts": float(self.num_restarts),
            "rl/dropped_future": float(self.num_future),
        }
        for number in range(num_processes):
            values[f"rl/generator_idle_share/{number}"] = 1.0 - busy[number]
            values[f"rl/generator/{number}/tokens_per_second"] = self.tokens[number] / seconds
        self.busy_seconds = defaultdict(float)
        self.load_seconds, self.tokens = Counter(), Counter()
        self.gather_seconds, self.num_future = 0.0, 0
        return values
