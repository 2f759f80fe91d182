import subprocess
import sys

import pytest
import torch

from titanrun.config.problems import ProblemsFound
from titanrun.distributed import device as devices
from titanrun.distributed.device import get_peak_memory_bytes, select_device

ACCELERATOR = torch.accelerator.is_available()


def test_cpu_is_always_there() -> None:
    assert select_device("cpu") == torch.device("cpu")
    assert devices.get_device_name(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["auto"] if ACCELERATOR else ["auto", "gpu"])
def test_auto_takes_what_torch_finds_and_gpu_insists(name: str) -> None:
    if name == "auto":
        assert (select_device("auto").type != "cpu") == ACCELERATOR
        return
    with pytest.raises(ProblemsFound, match="torch finds no accelerator") as caught:
        select_device("gpu")
    assert caught.value.exit_code == 2
    assert caught.value.problems[0].path == ("device",)


def test_the_peak_on_the_cpu_is_not_that_of_who_started_the_process() -> None:
    held = b"x" * 2**30
    words = (
        "import torch; from titanrun.distributed.device import get_peak_memory_bytes; "
        "print(get_peak_memory_bytes(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(held)


def test_the_peak_on_the_cpu_is_the_processs_resident_size() -> None:
    before = get_peak_memory_bytes(torch.device("cpu"))
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    after = get_peak_memory_bytes(torch.device("cpu"))
    assert 10 * 2**20 < before <= after < 2**40
    assert held.numel()
