"""The GPU as torch, titanrun and the driver's own program see it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from titanrun.distributed.device import (
    get_peak_memory_bytes,
    get_total_memory_bytes,
    is_accelerator,
    reset_peak_memory,
    select_device,
)

MIB = 2**20
ALLOCATE = """
from titanrun.distributed.rank_env import set_allocator_default
set_allocator_default()
import torch
kept = torch.empty(2**26, dtype=torch.uint8, device="cuda")
print(all(segment["is_expandable"] for segment in torch.cuda.memory_snapshot()))
"""


def test_finds_the_gpu(device: torch.device) -> None:
    found = select_device("cpu" if device.type == "cpu" else "auto")
    assert found == device
    assert is_accelerator(found) is (found.type != "cpu")
    assert torch.ones(3, device=found).sum().item() == 3


@pytest.mark.gpu
def test_reports_memory_that_nvidia_smi_reports(gpu: torch.device) -> None:
    """No CPU twin: nvidia-smi is the oracle."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi here")
    total, _ = query_nvidia_smi(gpu)
    # the driver keeps a part for itself
    assert get_total_memory_bytes(gpu) == pytest.approx(total, rel=0.02)
    torch.cuda.empty_cache()
    _, before = query_nvidia_smi(gpu)
    kept = torch.ones(1024 * MIB, dtype=torch.uint8, device=gpu)
    torch.accelerator.synchronize(gpu)
    _, used = query_nvidia_smi(gpu)
    assert used - before == pytest.approx(kept.nbytes, abs=64 * MIB)


def query_nvidia_smi(gpu: torch.device) -> tuple[int, int]:
    """The total and the used memory of the device in bytes."""
    identity = f"GPU-{torch.cuda.get_device_properties(gpu).uuid}"
    fields = ["--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits"]
    command = ["nvidia-smi", "-i", identity, *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    total, used = (int(number) * MIB for number in done.stdout.split(","))
    return total, used


@pytest.mark.gpu
def test_peak_memory_resets(gpu: torch.device) -> None:
    """No CPU twin: the peak of a process cannot be reset."""
    reset_peak_memory(gpu)
    before = get_peak_memory_bytes(gpu)
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device=gpu)
    assert get_peak_memory_bytes(gpu) >= before + kept.nbytes
    del kept
    assert get_peak_memory_bytes(gpu) >= before + 256 * MIB
    reset_peak_memory(gpu)
    assert get_peak_memory_bytes(gpu) < before + 256 * MIB


@pytest.mark.gpu
def test_expandable_segments_are_on(gpu: torch.device) -> None:
    """No CPU twin: only a GPU has segments; tests/distributed/test_rank_env.py has the variable."""
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


def test_doctor_passes(device: torch.device, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    # a clone that is not installed has no versions of its packages, and works
    wrong = [each for each in found if each["wrong"] and each["text"] != "not installed"]
    assert found and wrong == [], done.stderr
    by_topic = {each["topic"]: each for each in found}
    assert "two steps of a toy model work" in by_topic["training"]["text"]
    name = None if device.type == "cpu" else torch.cuda.get_device_name(device)
    accelerators = [each["device"] for each in found if each["topic"] == "accelerator"]
    assert device.type == "cpu" or accelerators[0] == name
