"""What is kept of the answers, for people to read: a line of JSON for the best and the worst of each group."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from titanrun.rl.config import RecorderConfig
from titanrun.rl.samples import Group, Rollout

FILE = "rollouts.jsonl"


class RolloutRecorder:
    """Appends to rollouts.jsonl.

    Args:
        config: how much is kept.
        folder: where the file is; None on ranks that leave that to the first.
    """

    def __init__(self, config: RecorderConfig, folder: Path | None) -> None:
        self.config = config
        self.path = None if folder is None or not config.keep_extremes else folder / FILE

    def record(self, step: int, groups: Iterable[Group]) -> None:
        """Keeps the extremes of each group."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for group in groups:
                for rollout in extremes(group, self.config.keep_extremes):
                    file.write(json.dumps(self._line(step, rollout), ensure_ascii=False) + "\n")

    def _line(self, step: int, rollout: Rollout) -> dict[str, Any]:
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


def extremes(group: Group, count: int) -> list[Rollout]:
    """The best and the worst answers, each once; those without a reward are no extremes."""
    ranked = sorted(
        (rollout for rollout in group.rollouts if rollout.reward is not None),
        key=lambda rollout: -(rollout.reward or 0.0),
    )
    return ranked if len(ranked) <= 2 * count else [*ranked[:count], *ranked[-count:]]
