"""Environment in an external program."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.distributed.rank_env import build_program_environment
from titanrun.rl.environments.config import ProgramConfig
from titanrun.rl.environments.environment_protocol import EnvironmentStep, EnvironmentStepError
from titanrun.rl.json_subprocess import JsonSubprocess, NoResponseError
from titanrun.rl.rollout_types import Rollout


class ProgramEnvironment:
    """Environment that sends `{prompt, expected, answers, heard}`.

    The response is `{text, reward, done}`, of which `text` may be missing.
    """

    def __init__(self, config: ProgramConfig, *, logs: Path) -> None:
        self.max_turns = config.max_turns
        self.subprocess = JsonSubprocess(
            config.command,
            timeout_seconds=config.step_timeout_seconds,
            max_restarts=config.max_restarts,
            log=logs / "environment.log",
            recipe_path=("rl", "environment", "command"),
            environment=build_program_environment(config.secret_variables),
        )

    def step(self, rollouts: Sequence[Rollout]) -> list[EnvironmentStep | EnvironmentStepError]:
        """Return the program's response to each conversation."""
        return [self._respond(rollout) for rollout in rollouts]

    def close(self) -> None:
        """Stop the program."""
        self.subprocess.close()

    def _respond(self, rollout: Rollout) -> EnvironmentStep | EnvironmentStepError:
        message = {
            "prompt": rollout.question.prompt,
            "expected": rollout.question.answer,
            "answers": [turn.text for turn in rollout.turns],
            "heard": rollout.heard,
        }
        try:
            answer = self.subprocess.request(message)
        except NoResponseError as error:
            return EnvironmentStepError(str(error))
        text, reward, done = answer.get("text", ""), answer.get("reward", 0.0), answer.get("done")
        if (
            not isinstance(text, str)
            or not isinstance(reward, int | float)
            or not isinstance(done, bool)
        ):
            return EnvironmentStepError(f"the environment returned {answer}")
        return EnvironmentStep(text, float(reward), done)
