import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_test_of_a_setting_fails_while_the_setting_is_ignored(tmp_path: Path) -> None:
    command = [sys.executable, "tools/try_leaves.py", "optimizer:adamw.lr", "optimizer"]
    outcomes = tmp_path / "outcomes.json"
    environment = os.environ | {"TITANRUN_TEST_OUTCOMES": str(outcomes)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "optimizer:adamw.lr: noticed",
            "optimizer: noticed",
            "2 of 2 settings: their test notices that they are ignored",
        ],
    )
    # CI would count tests that fail on purpose
    assert not outcomes.exists()
