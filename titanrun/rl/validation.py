"""Rewards of held-out prompts, one answer each, before, while and after a policy is trained."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from titanrun.rl.config import RlValidationConfig
from titanrun.rl.rollouts import Rollouter
from titanrun.rl.samples import TRUNCATED, Rollout
from titanrun.rl.tasks.rows import TaskRows


@dataclass(slots=True)
class Examination:
    """Asks the same prompts each time.

    Args:
        config: how many, how often.
        questions: the held-out ones.
        results: so far, by step.
    """

    config: RlValidationConfig
    questions: TaskRows
    results: dict[int, dict[str, float]] = field(default_factory=dict)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the policy is examined after `step`."""
        return is_last or (self.config.freq is not None and step % self.config.freq == 0)

    def examine(
        self, rollouter: Rollouter, *, step: int, beat: Callable[[], None]
    ) -> dict[str, float]:
        """The metrics of all prompts together; `beat` is called after each turn."""
        count = min(self.config.samples, len(self.questions))
        # negative: no group of training has such a number, whose draws would be the same
        groups = [
            rollouter.begin(self.questions.question(index), number=-1 - index, version=0, samples=1)
            for index in range(count)
        ]
        while going := [group for group in groups if not group.is_done]:
            rollouter.advance(going, temperature=self.config.temperature)
            beat()
        self.results[step] = summed_up([group.rollouts[0] for group in groups])
        return self.results[step]

    def table(self) -> str:
        """The first and the last results beside each other."""
        first, last = min(self.results), max(self.results)
        lines = [f"{'held-out prompts':32} {f'step {first}':>12} {f'step {last}':>12}"]
        for name, value in self.results[last].items():
            lines.append(
                f"{name:32} {self.results[first].get(name, float('nan')):12.4f} {value:12.4f}"
            )
        return "\n".join(lines)


def summed_up(rollouts: list[Rollout]) -> dict[str, float]:
    """Metrics of conversations by name."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return {
        "validation/reward_mean": fmean(rewards) if rewards else 0.0,
        "validation/tokens_mean": fmean(rollout.answer_tokens for rollout in rollouts),
        "validation/truncated_share": fmean(rollout.status in TRUNCATED for rollout in rollouts),
    }
