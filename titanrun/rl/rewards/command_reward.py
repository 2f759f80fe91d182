"""Reward computed by an external program."""

import logging
from collections.abc import Sequence
from pathlib import Path

from titanrun.distributed.rank_env import build_program_environment
from titanrun.rl.json_subprocess import JsonSubprocess, NoResponseError
from titanrun.rl.rewards.config import CommandConfig
from titanrun.rl.rollout_types import Rollout

log = logging.getLogger(__name__)


class CommandReward:
    """Reward that sends `{id, prompt, expected, answer, answers}` and gets `{reward}`.

    A value that is not a number is no reward: the completion is dropped.
    """

    def __init__(self, config: CommandConfig, *, log: Path) -> None:
        self.subprocess = JsonSubprocess(
            config.command,
            timeout_seconds=config.timeout_seconds,
            max_restarts=config.max_restarts,
            log=log,
            recipe_path=("rl", "rewards"),
            environment=build_program_environment(config.secret_variables),
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the program's reward of each conversation, None without a valid response."""
        return [self._compute_reward(rollout) for rollout in rollouts]

    def close(self) -> None:
        """Stop the program."""
        self.subprocess.close()

    def _compute_reward(self, rollout: Rollout) -> float | None:
        question = rollout.question
        message = {
            "id": rollout.id,
            "prompt": question.prompt,
            "expected": question.answer,
            "answer": rollout.last_completion_text,
            "answers": [turn.text for turn in rollout.turns],
        }
        try:
            reward = self.subprocess.request(message).get("reward")
        except NoResponseError as error:
            log.warning("no reward for %s: %s", rollout.id, error)
            return None
        if not isinstance(reward, int | float) or isinstance(reward, bool):
            return None
        return float(reward)
