import os
import sys
from pathlib import Path

import pytest

from titanrun.rl.json_subprocess import JsonSubprocess, NoResponseError

ANSWER_ONCE = "import json, os; input(); print(json.dumps({'pid': os.getpid()}), flush=True)"


def test_a_program_that_ended_before_it_is_asked_gave_no_response(tmp_path: Path) -> None:
    program = JsonSubprocess(
        [sys.executable, "-c", ANSWER_ONCE],
        timeout_seconds=30,
        max_restarts=0,
        log=tmp_path / "program.log",
        recipe_path=("rl", "reward"),
        title="the program",
    )
    pid = program.request({"text": "first"})["pid"]
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    # the message stays in the buffer of the pipe, and closing it fails once more
    with pytest.raises(NoResponseError, match="the program ended"):
        program.request({"text": "second"})
