"""Hardware and library versions that affect a run's results beyond its recipe.

`python -m titanrun.worker.hardware_info cpu|gpu|auto` prints them as one JSON object, for `titanrun
reproduce`.
"""

import json
import platform
import re
import sys
from pathlib import Path

import torch

from titanrun.distributed.device import get_device_name, is_accelerator, select_device
from titanrun.distributed.rank_env import get_allocator_options

# version files of the kernel modules of NVIDIA's and AMD's drivers
CPUINFO = Path("/proc/cpuinfo")
DRIVER_VERSION_FILES = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))


def get_hardware_info(device: torch.device) -> dict[str, object]:
    """Return device, driver and library versions by name, None for unknown ones."""
    cudnn = (
        torch.backends.cudnn.version()
        if is_accelerator(device) and torch.backends.cudnn.is_available()
        else None
    )
    return {
        "device": device.type,
        "device_name": get_device_name(device),
        "driver": find_driver_version() if is_accelerator(device) else None,
        "torch": str(torch.__version__),
        "torch_commit": torch.version.git_version,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": cudnn,
        "allocator": get_allocator_options() if is_accelerator(device) else None,
        "processor": get_cpu_model(),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def get_cpu_model() -> str:
    """Return the model of the CPU.

    Kernels for the same instructions divide their work by the CPU's caches.
    """
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def find_driver_version() -> str | None:
    """Return the version of the accelerator's driver, or None."""
    return next(
        (
            path.read_text(encoding="utf-8").strip()
            for path in DRIVER_VERSION_FILES
            if path.is_file()
        ),
        None,
    )


if __name__ == "__main__":
    sys.stdout.write(json.dumps(get_hardware_info(select_device(sys.argv[1]))) + "\n")
