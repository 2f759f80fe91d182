"""Record of rollouts for inspection: the best and worst completions of each group as JSON."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from titanrun.rl.config import RecorderConfig
from titanrun.rl.rollout_types import Rollout, RolloutGroup

ROLLOUTS_FILE = "rollouts.jsonl"


class RolloutRecorder:
    """Writer of rollouts.jsonl.

    Args:
        config: what is kept.
        folder: folder of the file. None on ranks other than the first.
    """

    def __init__(self, config: RecorderConfig, folder: Path | None) -> None:
        self.config = config
        self.path = None if folder is None or not config.keep_extremes else folder / ROLLOUTS_FILE

    def record(self, step: int, groups: Iterable[RolloutGroup]) -> None:
        """Write the best and worst completions of each group."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for group in groups:
                for rollout in select_best_and_worst(group, self.config.keep_extremes):
                    file.write(
                        json.dumps(self._build_record(step, rollout), ensure_ascii=False) + "\n"
                    )

    def _build_record(self, step: int, rollout: Rollout) -> dict[str, Any]:
        line: dict[str, Any] = {
            "step": step,
            "group": rollout.group,
            "rollout": rollout.index,
            "status": rollout.status,
            "reward": rollout.reward,
            "rewards": rollout.parts,
            "advantage": rollout.advantage,
            "version": rollout.oldest_version,
            "prompt": rollout.question.prompt,
            "expected": rollout.question.answer,
            "answers": [turn.text for turn in rollout.turns],
            "heard": rollout.heard,
        }
        if self.config.tokens:
            line["tokens"] = [turn.completion.tokens for turn in rollout.turns]
        if self.config.logprobs:
            line["logprobs"] = [turn.completion.logprobs for turn in rollout.turns]
        return line


def select_best_and_worst(group: RolloutGroup, count: int) -> list[Rollout]:
    """Return the best and the worst completions, each once, without unscored ones."""
    ranked = sorted(
        (rollout for rollout in group.rollouts if rollout.reward is not None),
        key=lambda rollout: -(rollout.reward or 0.0),
    )
    return ranked if len(ranked) <= 2 * count else [*ranked[:count], *ranked[-count:]]
