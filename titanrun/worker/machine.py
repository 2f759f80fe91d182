"""What a run's numbers depend on beyond its recipe: device, driver, libraries, threads.

`python -m titanrun.worker.machine cpu|gpu|auto` prints it as one JSON object, for `titanrun reproduce`.
"""

import json
import platform
import re
import sys
from pathlib import Path

import torch

from titanrun.distributed.device import device_name, find_device, is_accelerator

# the kernel modules of NVIDIA's and AMD's drivers say their version here
CPUINFO = Path("/proc/cpuinfo")
DRIVERS = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))


def machine(device: torch.device) -> dict[str, object]:
    """Device, driver and libraries by name; None for what this machine does not have or say."""
    cudnn = (
        torch.backends.cudnn.version()
        if is_accelerator(device) and torch.backends.cudnn.is_available()
        else None
    )
    return {
        "device": device.type,
        "device_name": device_name(device),
        "driver": driver() if is_accelerator(device) else None,
        "torch": str(torch.__version__),
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": cudnn,
        "processor": processor(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The model of the CPU: kernels for the same instructions divide their work by its caches."""
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def driver() -> str | None:
    """The version of the accelerator's driver."""
    return next(
        (path.read_text(encoding="utf-8").strip() for path in DRIVERS if path.is_file()), None
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(machine(find_device(sys.argv[1]))) + "\n")
