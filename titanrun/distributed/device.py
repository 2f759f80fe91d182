"""The device of this process: the one module that asks torch which accelerator there is."""

import os
import resource
from pathlib import Path

import torch

from titanrun.components.converters.config import Kernels
from titanrun.config.problems import fail

CPU = torch.device("cpu")
# of this process, on Linux
STATUS = Path("/proc/self/status")


def find_device(name: str, *, local_rank: int = 0) -> torch.device:
    """The device that a recipe's `device` means in this process, made current.

    Args:
        name: `cpu`, `gpu` (the accelerator that torch finds) or `auto` (that accelerator, else the CPU).
        local_rank: which of the machine's accelerators.

    Raises:
        ProblemsFound: `gpu` where torch finds none, or fewer than local_rank + 1.
    """
    if name == "cpu":
        return CPU
    if not torch.accelerator.is_available():
        if name == "auto":
            return CPU
        raise fail(
            "usage",
            "device is gpu but torch finds no accelerator",
            path=("device",),
            help="use device: cpu, or install torch for your accelerator",
        )
    count = torch.accelerator.device_count()
    if local_rank >= count:
        message = f"local rank {local_rank} has no accelerator of its own: this machine has {count}"
        raise fail(
            "usage", message, path=("device",), help="start at most one process per accelerator"
        )
    torch.accelerator.set_device_index(local_rank)
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, local_rank)


def means_cpu(name: str) -> bool:
    """Whether a recipe's `device` is the CPU on this machine."""
    return name == "cpu" or (name == "auto" and not torch.accelerator.is_available())


def is_accelerator(device: torch.device) -> bool:
    """Whether work on the device runs behind the host's back, so that reading a value waits for it."""
    return device.type != "cpu"


def emulates_bfloat16(device: torch.device) -> bool:
    """Whether the device has no bf16 arithmetic, so that matrix products in bf16 are far slower than in fp32."""
    return not is_accelerator(device) and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_kernels(device: torch.device, kernels: Kernels) -> bool:
    """Whether the device is new enough for the kernels."""
    if device.type != "cuda":
        return False
    if torch.version.hip is not None:
        # "gfx942:sramecc+:xnack-"
        return (
            torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0] in kernels.rocm
        )
    return torch.cuda.get_device_capability(device) >= kernels.cuda


def device_words(device: torch.device) -> str:
    """The device as a message calls it: `cpu`, or `NVIDIA A100-SXM4-80GB (compute capability 8.0)`."""
    if device.type != "cuda" or torch.version.hip is not None:
        return device_name(device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{device_name(device)} (compute capability {major}.{minor})"


def device_name(device: torch.device) -> str:
    """The product name of an accelerator, or the type of the device where torch knows no name."""
    if not is_accelerator(device):
        return device.type
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if name_of is None else str(name_of(device))


def wait_for(device: torch.device) -> None:
    """Returns when all work queued on the device is done."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory in use since `reset_peak_memory`; on the CPU the peak resident size of the process since its start."""
    if is_accelerator(device):
        return int(torch.accelerator.max_memory_allocated(device))
    if not STATUS.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # what getrusage tells on Linux is never less than the process had that started this one
    (line,) = (
        line
        for line in STATUS.read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024


def memory_bytes(device: torch.device | None) -> int:
    """All memory of a device; of the CPU main memory, or less where the process may have less."""
    if device is not None and is_accelerator(device):
        return int(torch.accelerator.get_memory_info()[1])
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return whole if limit == resource.RLIM_INFINITY else min(whole, limit)


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new measurement of `peak_memory_bytes`; the CPU's peak cannot be reset."""
    if is_accelerator(device):
        torch.accelerator.reset_peak_memory_stats(device)
