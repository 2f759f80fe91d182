"""Device of this process. Only this module asks torch for the accelerator."""

import os
import resource
from pathlib import Path

import torch

from titanrun.components.converters.spec.device_requirement import DeviceRequirement
from titanrun.config.problems import problem_error

CPU = torch.device("cpu")
# status of this process, on Linux
PROC_STATUS = Path("/proc/self/status")


def select_device(name: str, *, local_rank: int = 0) -> torch.device:
    """Select the device that a recipe's `device` names and make it current.

    Args:
        name: `cpu`, `gpu` (the accelerator that torch finds) or `auto` (that accelerator, else the
            CPU).
        local_rank: index of the accelerator on this machine.

    Raises:
        ProblemsFound: if the name is `gpu` and torch finds no accelerator, or fewer than local_rank
            + 1.
    """
    if name == "cpu":
        return CPU
    if not torch.accelerator.is_available():
        if name == "auto":
            return CPU
        raise problem_error(
            "usage",
            "device is gpu, but torch finds no accelerator",
            path=("device",),
            hint="use device: cpu, or install torch for your accelerator",
        )
    count = torch.accelerator.device_count()
    if local_rank >= count:
        message = f"local rank {local_rank} has no accelerator: this machine has {count}"
        raise problem_error(
            "usage", message, path=("device",), hint="start at most one process per accelerator"
        )
    torch.accelerator.set_device_index(local_rank)
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, local_rank)


def choose_device_index(number: int) -> int:
    """Return the accelerator of a helper process with a number: they take turns."""
    return number % max(1, torch.accelerator.device_count())


def resolves_to_cpu(name: str) -> bool:
    """Return whether a recipe's `device` is the CPU on this machine."""
    return name == "cpu" or (name == "auto" and not torch.accelerator.is_available())


def is_accelerator(device: torch.device) -> bool:
    """Return whether the device works asynchronously, so that reading a value waits for it."""
    return device.type != "cpu"


def emulates_bfloat16(device: torch.device) -> bool:
    """Return whether the device has no bf16 arithmetic.

    Matrix products in bf16 are far slower than in fp32 there.
    """
    return not is_accelerator(device) and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def meets_device_requirement(device: torch.device, requirement: DeviceRequirement) -> bool:
    """Return whether the device is new enough for the kernels."""
    if device.type != "cuda":
        return False
    if torch.version.hip is not None:
        # "gfx942:sramecc+:xnack-"
        return (
            torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
            in requirement.rocm_architectures
        )
    return torch.cuda.get_device_capability(device) >= requirement.min_compute_capability


def has_compute_capability(device: torch.device, minimum: tuple[int, int]) -> bool:
    """Return whether an accelerator is new enough.

    So is the meta device, on which steps of an accelerator are traced.
    """
    return device.type == "meta" or torch.cuda.get_device_capability(device) >= minimum


def format_device(device: torch.device) -> str:
    """Return the device for messages.

    Examples are `cpu` and `NVIDIA A100-SXM4-80GB (compute capability 8.0)`.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return get_device_name(device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{get_device_name(device)} (compute capability {major}.{minor})"


def get_device_name(device: torch.device) -> str:
    """Return the product name of an accelerator, or the device type if torch knows no name."""
    if not is_accelerator(device):
        return device.type
    name_of = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if name_of is None else str(name_of(device))


def synchronize_device(device: torch.device) -> None:
    """Wait until all work queued on the device is done."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def get_peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes since `reset_peak_memory`.

    On the CPU it is the peak resident size of the process since its start.
    """
    if is_accelerator(device):
        return int(torch.accelerator.max_memory_allocated(device))
    if not PROC_STATUS.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # on Linux the value of getrusage is never less than that of the parent process
    (line,) = (
        line
        for line in PROC_STATUS.read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) * 1024


def get_total_memory_bytes(device: torch.device | None) -> int:
    """Return the total memory of a device in bytes.

    For the CPU it is main memory, or the address space limit of the process if that is lower.
    """
    if device is not None and is_accelerator(device):
        return int(torch.accelerator.get_memory_info()[1])
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return whole if limit == resource.RLIM_INFINITY else min(whole, limit)


def reset_peak_memory(device: torch.device) -> None:
    """Restart the measurement of `get_peak_memory_bytes`. The CPU's peak cannot be reset."""
    if is_accelerator(device):
        torch.accelerator.reset_peak_memory_stats(device)
