"""A program that a recipe names gets the environment without secrets, except those it lists.

Row B16 of the defect list.
"""

import sys
from pathlib import Path

import pytest

from tests.rl.parts import environment, reward, said

PROGRAM = (
    "import json, os, sys\nnames = [name for name in ('COLOR', 'JUDGE_TOKEN', 'OTHER_TOKEN') "
    "if name in os.environ]\nfor line in sys.stdin: "
    "print(json.dumps({'reward': len(names), 'text': ' '.join(names), 'done': True}), flush=True)"
)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable, and two secrets."""
    for name in ("COLOR", "JUDGE_TOKEN", "OTHER_TOKEN"):
        monkeypatch.setenv(name, "x")


@pytest.mark.parametrize(("listed", "expected"), [([], 1.0), (["JUDGE_TOKEN"], 2.0)])
def test_a_reward_program_gets_the_secrets_that_it_lists(
    tmp_path: Path, listed: list[str], expected: float
) -> None:
    program = reward(
        tmp_path,
        "command",
        command=(sys.executable, "-c", PROGRAM),
        secret_variables=tuple(listed),
    )
    assert program.score([said("a")]) == [expected]
    program.close()


@pytest.mark.parametrize(
    ("listed", "text"), [([], "COLOR"), (["JUDGE_TOKEN"], "COLOR JUDGE_TOKEN")]
)
def test_an_environment_program_gets_the_secrets_that_it_lists(
    tmp_path: Path, listed: list[str], text: str
) -> None:
    world = environment(
        tmp_path,
        "program",
        command=(sys.executable, "-c", PROGRAM),
        secret_variables=tuple(listed),
    )
    (step,) = world.step([said("a")])
    assert step.text == text
    world.close()
