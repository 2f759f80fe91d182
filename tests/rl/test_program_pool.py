"""Several copies of an environment or reward program."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.rl.environments.config import ProgramConfig
from titanrun.rl.environments.environment_protocol import EnvironmentStep, EnvironmentStepError
from titanrun.rl.environments.program_environment import ProgramEnvironment
from titanrun.rl.rewards.command_reward import CommandReward
from titanrun.rl.rewards.config import CommandConfig
from titanrun.rl.rollout_types import Completion, Prompt, Rollout, Turn

COPIES = 4
# answers only while so many copies have read a message: one after the other would wait for ever
MEETING = """
import json, os, sys, time
from pathlib import Path
folder = Path(FOLDER)
for line in sys.stdin:
    message = json.loads(line)
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 4:
        time.sleep(0.01)
    value = float(message["prompt"])
    print(json.dumps({"reward": value, "text": message["prompt"], "done": True}), flush=True)
"""
DIES_AT_3 = """
import json, sys
for line in sys.stdin:
    prompt = json.loads(line)["prompt"]
    if prompt == "3":
        sys.exit(1)
    print(json.dumps({"reward": float(prompt), "done": True}), flush=True)
"""


def build_rollouts(count: int) -> list[Rollout]:
    rollouts = [Rollout(number, 0, Prompt(str(number), "")) for number in range(count)]
    for rollout in rollouts:
        rollout.turns.append(Turn((1,), Completion((1,), (0.0,), "stop", 0), "a"))
    return rollouts


def command(tmp_path: Path, program: str) -> Sequence[str]:
    (tmp_path / "meeting").mkdir()
    return [
        sys.executable,
        "-c",
        program.replace("FOLDER", repr(str(tmp_path / "meeting"))),
    ]


def test_copies_of_an_environment_respond_at_the_same_time(tmp_path: Path) -> None:
    config = ProgramConfig(
        command=command(tmp_path, MEETING),
        processes=COPIES,
        step_timeout_seconds=20,
        max_restarts=0,
    )
    environment = ProgramEnvironment(config, logs=tmp_path)
    try:
        steps = environment.step(build_rollouts(16))
    finally:
        environment.close()
    assert steps == [EnvironmentStep(str(number), float(number), True) for number in range(16)]
    assert len(list((tmp_path / "meeting").iterdir())) == COPIES


def test_copies_of_a_reward_score_at_the_same_time(tmp_path: Path) -> None:
    config = CommandConfig(
        command=command(tmp_path, MEETING), processes=COPIES, timeout_seconds=20, max_restarts=0
    )
    reward = CommandReward(config, log=tmp_path / "reward-command.log")
    try:
        assert reward.score(build_rollouts(16)) == [float(number) for number in range(16)]
    finally:
        reward.close()
    logs = {file.name for file in tmp_path.glob("*.log")}
    assert {"reward-command.log", "reward-command-process-4.log"} <= logs


def test_a_copy_that_ends_loses_one_conversation_and_is_restarted(tmp_path: Path) -> None:
    config = ProgramConfig(command=command(tmp_path, DIES_AT_3), processes=2)
    environment = ProgramEnvironment(config, logs=tmp_path)
    try:
        steps = environment.step(build_rollouts(8))
    finally:
        environment.close()
    errors = [n for n, step in enumerate(steps) if isinstance(step, EnvironmentStepError)]
    assert errors == [3]
    assert [step.reward for step in steps if isinstance(step, EnvironmentStep)] == [
        0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0,
    ]  # fmt: skip


def test_a_program_that_cannot_be_started_is_a_problem_of_all_copies(tmp_path: Path) -> None:
    config = ProgramConfig(command=[str(tmp_path / "missing")], processes=2)
    environment = ProgramEnvironment(config, logs=tmp_path)
    with pytest.raises(ProblemsFound, match="cannot be started"):
        environment.step(build_rollouts(4))
