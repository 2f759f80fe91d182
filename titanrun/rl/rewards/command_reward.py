"""Reward computed by an external program."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.distributed.rank_env import build_program_environment
from titanrun.rl.json_subprocess import NoResponseError
from titanrun.rl.program_pool import Answer, ProgramPool
from titanrun.rl.rewards.config import CommandConfig
from titanrun.rl.rollout_types import Rollout

log = logging.getLogger(__name__)

ANSWER_LINES = (
    "run it manually with a line of JSON on its stdin: it has to answer each line until stdin "
    "ends, as titanrun explain reward:command shows, not to define a function"
)


class CommandReward:
    """Reward that sends `{id, prompt, expected, answer, answers}` and gets `{reward}`.

    A value that is not a number is no reward: the completion is dropped.
    """

    def __init__(self, config: CommandConfig, *, log: Path) -> None:
        self.programs = ProgramPool(
            config.processes,
            command=config.command,
            timeout_seconds=config.timeout_seconds,
            max_restarts=config.max_restarts,
            log=log,
            recipe_path=("rl", "rewards"),
            environment=build_program_environment(config.secret_variables),
            help_text=ANSWER_LINES,
        )

    def score(self, rollouts: Sequence[Rollout]) -> list[float | None]:
        """Return the program's reward of each conversation, None without a valid response."""
        answers = self.programs.request_all([build_reward_message(rollout) for rollout in rollouts])
        return [
            parse_reward(rollout, answer) for rollout, answer in zip(rollouts, answers, strict=True)
        ]

    def close(self) -> None:
        """Stop the program."""
        self.programs.close()


def build_reward_message(rollout: Rollout) -> dict[str, Any]:
    """Build what the program reads of a conversation."""
    question = rollout.question
    return {
        "id": rollout.id,
        "prompt": question.prompt,
        "expected": question.answer,
        "answer": rollout.last_completion_text,
        "answers": [turn.text for turn in rollout.turns],
    }


def parse_reward(rollout: Rollout, answer: Answer) -> float | None:
    """Return the reward in a program's response, None if it has none."""
    if isinstance(answer, NoResponseError):
        log.warning("no reward for %s: %s", rollout.id, answer)
        return None
    reward = answer.get("reward")
    if not isinstance(reward, int | float) or isinstance(reward, bool):
        return None
    return float(reward)
