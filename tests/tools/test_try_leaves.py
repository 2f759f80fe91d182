import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_test_of_a_setting_fails_while_the_setting_is_ignored() -> None:
    command = [sys.executable, "tools/try_leaves.py", "optimizer:adamw.lr", "optimizer"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "optimizer:adamw.lr: noticed",
            "optimizer: noticed",
            "2 of 2 settings are missed by their test when they are ignored",
        ],
    )
