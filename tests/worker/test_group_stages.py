"""Stages of a recipe and replica groups on machines of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_train_stages import RECIPE

pytestmark = pytest.mark.torchft
GROUPS = """
fault_tolerance:
  enable: true
  replica_id: 0
  lighthouse: http://127.0.0.1:29510
"""


def test_stages_with_a_group_per_machine_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text(RECIPE + GROUPS)
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", "both.yaml", "training.global_batch_size=4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = "error[not-built]: stage pretrain cannot have a replica group per machine"
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["both.yaml"]
