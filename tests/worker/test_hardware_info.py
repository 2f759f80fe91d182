"""What run.json says about the machine is what torch says."""

import json
import subprocess
import sys

import pytest
import torch

from titanrun.worker.hardware_info import get_hardware_info


def test_it_names_device_libraries_and_threads() -> None:
    found = get_hardware_info(torch.device("cpu"))
    assert (found["device"], found["torch"], found["threads"]) == (
        "cpu",
        torch.__version__,
        torch.get_num_threads(),
    )
    assert found["processor"]
    assert found["driver"] is None


@pytest.mark.slow
def test_as_a_program_it_says_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "titanrun.worker.hardware_info", "cpu"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        **get_hardware_info(torch.device("cpu")),
        "threads": json.loads(done.stdout)["threads"],
    }
