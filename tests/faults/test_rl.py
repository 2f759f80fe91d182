"""Rows 52 and 53: rewards that fail, and a run that is killed between its answers and its
update."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Note
from tests.faults.processes import work
from tests.rl.test_runs import numbers, write_run
from titanrun.config.trust import TRUST_ALL, TRUST_VARIABLE
from titanrun.rl.logprob_check_hook import LogprobCheckHook
from titanrun.worker.rank_main import main

# its second answer is no number, at the third it dies
UNRELIABLE = """
import json, sys
for number, line in enumerate(sys.stdin):
    if number == 2: sys.exit(1)
    reward = {"reward": sum(map(ord, json.loads(line)["answer"])) % 97}
    print('{"reward": NaN}' if number == 1 else json.dumps(reward), flush=True)
"""
NOTHING = "import sys\nfor line in sys.stdin: print('{\"reward\": NaN}', flush=True)"


@pytest.fixture(scope="module", autouse=True)
def allowed_programs() -> Iterator[None]:
    """The user has allowed the programs that the recipes here name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, TRUST_ALL)
        yield


def program(text: str, **options: Any) -> str:
    return "rl.rewards=" + json.dumps(
        [{"name": "command", "command": [sys.executable, "-c", text], **options}]
    )


def test_an_answer_without_a_reward_is_left_out_and_counted_and_a_program_is_started_again(
    tmp_path: Path, note: Note
) -> None:
    without = ("rl.validation.dataset=null", "rl.rollout.stop_after_dropped=2")
    unreliable = write_run(
        tmp_path / "unreliable", program(UNRELIABLE, max_restarts=20), "training.steps=1", *without
    )
    assert main([str(unreliable)]) == 0
    # of each three answers the second has no number, and at the third the program dies
    assert numbers(unreliable.parent)[0]["rollout/dropped_without_reward"] == 5
    nothing = write_run(tmp_path / "nothing", program(NOTHING), *without)
    assert main([str(nothing)]) == 3
    assert "no reward variance" in (nothing.parent / "logs" / "rank-0.log").read_text()
    slow = "import sys, time\nsys.stdin.readline(); time.sleep(60)"
    late = write_run(
        tmp_path / "late", program(slow, timeout_seconds=0.2, max_restarts=1), *without
    )
    assert main([str(late)]) == 3
    assert "did not respond within 0.2 seconds" in (late.parent / "logs" / "rank-0.log").read_text()
    note(
        52,
        injected="a reward program that dies at each third completion, gives NaN, or never answers",
        outcome="the completion is dropped and counted, the program restarted max_restarts "
        "times, then exit 3; a group without a reward is dropped, and a run with only "
        "such groups ends with exit 3",
        lost="those answers",
    )


def killed_before_update(step: int) -> None:
    """A fault: the process dies when all answers of that step are there, and nothing has been
    learned from them."""
    check = LogprobCheckHook.check_difference

    def dying(self: LogprobCheckHook, difference: float, number: int) -> None:
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        check(self, difference, number)

    LogprobCheckHook.check_difference = dying  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("offpolicy", [0, 2])
def test_a_run_killed_between_answers_and_update_goes_on_to_the_same_numbers(
    tmp_path: Path, note: Note, offpolicy: int
) -> None:
    options = (
        "training.steps=6",
        "checkpoint={enable: true, interval: 3}",
        f"rl.schedule.target_offpolicy={offpolicy}",
        "rl.environment={name: calculator, max_turns: 2}",
        "rl.rollout.drop_zero_variance=false",
    )
    whole, cut = write_run(tmp_path / "whole", *options), write_run(tmp_path / "cut", *options)
    assert work(whole) == 0
    assert work(cut, killed_before_update, 5) == -signal.SIGKILL
    assert [line["step"] for line in numbers(cut.parent)] == [0, 1, 2, 3, 4]
    assert work(cut) == 0
    assert numbers(cut.parent) == numbers(whole.parent)
    note(
        53,
        injected="SIGKILL when all completions of step 5 exist but the update has not happened; "
        "completions of the current weights, and older ones",
        outcome="resumes after step 3 with the policy's version, the position in the prompts "
        "and the unfinished conversations, with the same numbers",
        lost="the steps since the checkpoint",
    )
