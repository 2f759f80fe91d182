"""A program that says what an answer is worth."""

import logging
from collections.abc import Sequence
from pathlib import Path

from titanrun.rl.json_lines import JsonLines, NoAnswer
from titanrun.rl.rewards.config import CommandConfig
from titanrun.rl.samples import Rollout

log = logging.getLogger(__name__)


class CommandReward:
    """Sends `{id, prompt, expected, answer, answers}`, takes `{reward}`. What is no number is no reward: the answer is dropped."""

    def __init__(self, config: CommandConfig, *, log: Path) -> None:
        self.program = JsonLines(
            config.command,
            timeout_seconds=config.timeout_seconds,
            max_restarts=config.max_restarts,
            log=log,
            place=("rl", "rewards"),
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """What the program says of each conversation; None where it says nothing of use."""
        return [self._worth(rollout) for rollout in rollouts]

    def close(self) -> None:
        """Ends the program."""
        self.program.close()

    def _worth(self, rollout: Rollout) -> float | None:
        question = rollout.question
        told = {
            "id": rollout.id,
            "prompt": question.prompt,
            "expected": question.answer,
            "answer": rollout.answer,
            "answers": [turn.text for turn in rollout.turns],
        }
        try:
            reward = self.program.ask(told).get("reward")
        except NoAnswer as error:
            log.warning("no reward for %s: %s", rollout.id, error)
            return None
        is_number = isinstance(reward, int | float) and not isinstance(reward, bool)
        return float(reward) if is_number else None
