"""A program as the environment."""

from collections.abc import Sequence
from pathlib import Path

from titanrun.rl.environments.config import ProgramConfig
from titanrun.rl.environments.environment import Answered, EnvironmentFailed
from titanrun.rl.json_lines import JsonLines, NoAnswer
from titanrun.rl.samples import Rollout


class Program:
    """Sends each conversation as `{prompt, expected, answers, heard}`; takes `{text, reward, done}`, of which `text` may be missing."""

    def __init__(self, config: ProgramConfig, *, logs: Path) -> None:
        self.max_turns = config.max_turns
        self.program = JsonLines(
            config.command,
            timeout_seconds=config.step_timeout_seconds,
            max_restarts=config.max_restarts,
            log=logs / "environment.log",
            place=("rl", "environment", "command"),
        )

    def reply(self, rollouts: Sequence[Rollout]) -> list[Answered | EnvironmentFailed]:
        """What the program says to each conversation."""
        return [self._answer(rollout) for rollout in rollouts]

    def close(self) -> None:
        """Ends the program."""
        self.program.close()

    def _answer(self, rollout: Rollout) -> Answered | EnvironmentFailed:
        told = {
            "prompt": rollout.question.prompt,
            "expected": rollout.question.answer,
            "answers": [turn.text for turn in rollout.turns],
            "heard": rollout.heard,
        }
        try:
            answer = self.program.ask(told)
        except NoAnswer as error:
            return EnvironmentFailed(str(error))
        text, reward, done = answer.get("text", ""), answer.get("reward", 0.0), answer.get("done")
        if (
            not isinstance(text, str)
            or not isinstance(reward, int | float)
            or not isinstance(done, bool)
        ):
            return EnvironmentFailed(f"the environment answered {answer}")
        return Answered(text, float(reward), done)
