"""Rewards of held-out prompts before, during and after RL training."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from titanrun.rl.config import RlValidationConfig
from titanrun.rl.prompts.prompt_dataset import PromptDataset
from titanrun.rl.rollout_source import AnyRolloutRunner
from titanrun.rl.rollout_types import TRUNCATED_STATUSES, Rollout


@dataclass(slots=True)
class RolloutValidator:
    """Validation on the same prompts each time, with one completion per prompt.

    Args:
        config: number of prompts and interval.
        prompt_dataset: the held-out prompts.
        results: metrics so far, by step.
    """

    config: RlValidationConfig
    prompt_dataset: PromptDataset
    results: dict[int, dict[str, float]] = field(default_factory=dict)

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Return whether to validate after `step`."""
        return is_last or (self.config.freq is not None and step % self.config.freq == 0)

    def validate(
        self, runner: AnyRolloutRunner, *, step: int, on_turn_end: Callable[[], None]
    ) -> dict[str, float]:
        """Compute the metrics of all prompts together.

        Args:
            runner: runs the conversations.
            step: the current step.
            on_turn_end: called after each turn.
        """
        count = min(self.config.samples, len(self.prompt_dataset))
        # negative, because equal group numbers would sample the same as in training
        groups = [
            runner.start_group(
                self.prompt_dataset.get_prompt(index),
                group_number=-1 - index,
                policy_version=0,
                num_samples=1,
            )
            for index in range(count)
        ]
        while ongoing := [group for group in groups if not group.is_done]:
            runner.generate_turn(ongoing, temperature=self.config.temperature)
            on_turn_end()
        self.results[step] = compute_validation_metrics([group.rollouts[0] for group in groups])
        return self.results[step]

    def format_table(self) -> str:
        """Format the first and the last results side by side."""
        first, last = min(self.results), max(self.results)
        lines = [f"{'held-out prompts':32} {f'step {first}':>12} {f'step {last}':>12}"]
        for name, value in self.results[last].items():
            lines.append(
                f"{name:32} {self.results[first].get(name, float('nan')):12.4f} {value:12.4f}"
            )
        return "\n".join(lines)


def compute_validation_metrics(rollouts: list[Rollout]) -> dict[str, float]:
    """Compute the metrics of conversations by name."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return {
        "validation/reward_mean": fmean(rewards) if rewards else 0.0,
        "validation/tokens_mean": fmean(rollout.num_completion_tokens for rollout in rollouts),
        "validation/truncated_share": fmean(
            rollout.status in TRUNCATED_STATUSES for rollout in rollouts
        ),
    }
