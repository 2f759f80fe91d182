"""Environment in an external program."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.distributed.rank_env import build_program_environment
from titanrun.rl.environments.config import ProgramConfig
from titanrun.rl.environments.environment_protocol import EnvironmentStep, EnvironmentStepError
from titanrun.rl.json_subprocess import NoResponseError
from titanrun.rl.program_pool import Answer, ProgramPool
from titanrun.rl.rollout_types import Rollout


class ProgramEnvironment:
    """Environment that sends `{prompt, expected, answers, heard}`.

    The response is `{text, reward, done}`, of which `text` may be missing.
    """

    def __init__(self, config: ProgramConfig, *, logs: Path) -> None:
        self.max_turns = config.max_turns
        self.programs = ProgramPool(
            config.processes,
            command=config.command,
            timeout_seconds=config.step_timeout_seconds,
            max_restarts=config.max_restarts,
            log=logs / "environment.log",
            recipe_path=("rl", "environment", "command"),
            environment=build_program_environment(config.secret_variables),
        )

    def step(self, rollouts: Sequence[Rollout]) -> list[EnvironmentStep | EnvironmentStepError]:
        """Return the program's response to each conversation."""
        answers = self.programs.request_all([build_step_message(rollout) for rollout in rollouts])
        return [parse_answer(answer) for answer in answers]

    def close(self) -> None:
        """Stop the program."""
        self.programs.close()


def build_step_message(rollout: Rollout) -> dict[str, Any]:
    """Build what the program reads of a conversation."""
    return {
        "prompt": rollout.question.prompt,
        "expected": rollout.question.answer,
        "answers": [turn.text for turn in rollout.turns],
        "heard": rollout.heard,
    }


def parse_answer(answer: Answer) -> EnvironmentStep | EnvironmentStepError:
    """Return a program's response, an error if it is missing or of another form."""
    if isinstance(answer, NoResponseError):
        return EnvironmentStepError(str(answer))
    text, reward, done = answer.get("text", ""), answer.get("reward", 0.0), answer.get("done")
    if (
        not isinstance(text, str)
        or not isinstance(reward, int | float)
        or not isinstance(done, bool)
    ):
        return EnvironmentStepError(f"the environment returned {answer}")
    return EnvironmentStep(text, float(reward), done)
