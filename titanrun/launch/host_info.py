"""Processor, memory and disk of this machine, read without torch."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# CPU flags of bf16 arithmetic on x86 and ARM; without it every product is emulated in fp32
AVX512_FLAGS = frozenset(("avx512bw", "avx512dq", "avx512vl"))
"""CPU flags with which PyTorch multiplies in bf16 on x86, also without instructions for it."""
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "svebf16")
GIB = 1024**3
DEVICES = Path("/dev")
# the file of the driver, those of accelerators, and the variables that select the visible ones
ACCELERATORS = {
    ("nvidiactl", "nvidia[0-9]*"): ("CUDA_VISIBLE_DEVICES",),
    ("kfd", "dri/renderD*"): (
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ),
}


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """CPU of a machine.

    `bf16` holds the instructions that compute in bf16, None if the system does not report them.
    `emulates_bf16` is whether PyTorch is known to emulate products in bf16.
    """

    model: str
    cores: int
    bf16: tuple[str, ...] | None
    emulates_bf16: bool = False


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Main memory in bytes; unknown figures are None.

    `limit` is the limit of a container, None without a limit.
    """

    total: int | None
    available: int | None
    limit: int | None


def read_cpu_info(cpuinfo: str | None = None) -> CpuInfo:
    """Read the CPU of this machine, or of the text of a /proc/cpuinfo."""
    text = cpuinfo if cpuinfo is not None else read_system_file(CPUINFO)
    known = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, re.MULTILINE))
    flags = (known.get("flags") or known.get("Features") or "").split()
    bf16 = tuple(flag for flag in BF16_FLAGS if flag in flags) if flags else None
    model = known.get("model name") or platform.processor() or platform.machine()
    return CpuInfo(
        model,
        count_usable_cores(),
        bf16,
        emulates_bf16=bf16 == () and not AVX512_FLAGS.issubset(flags),
    )


def count_usable_cores() -> int:
    """Count the CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def count_accelerators(environ: Mapping[str, str], devices: Path = DEVICES) -> int:
    """Count the usable accelerators: NVIDIA's, else AMD's, unless hidden by the environment."""
    for (driver, pattern), hidden_by in ACCELERATORS.items():
        found = (
            sum(1 for path in devices.glob(pattern) if re.search(r"[0-9]+$", path.name))
            if (devices / driver).exists()
            else 0
        )
        for name in hidden_by:
            if name in environ:
                shown = [
                    entry for entry in environ[name].split(",") if entry.strip() not in ("", "-1")
                ]
                found = min(found, len(shown))
        if found:
            return found
    return 0


def read_memory_info(meminfo: str | None = None) -> MemoryInfo:
    """Read the main memory of this machine, or of the text of a /proc/meminfo."""
    text = meminfo if meminfo is not None else read_system_file(MEMINFO)
    kib: Mapping[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    total = int(kib["MemTotal"]) * 1024 if "MemTotal" in kib else None
    available = int(kib["MemAvailable"]) * 1024 if "MemAvailable" in kib else None
    limits = [
        int(written)
        for path in CGROUP_LIMITS
        if (written := read_system_file(path).strip()).isdigit()
    ]
    limit = min(limits, default=None)
    return MemoryInfo(
        total, available, limit if limit is not None and (total is None or limit < total) else None
    )


def get_free_disk_bytes(folder: Path) -> int:
    """Return the free bytes of the file system of a folder."""
    return shutil.disk_usage(folder).free


def read_system_file(path: Path) -> str:
    """Read a small system file. Return empty text if this system has no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def format_gib_or_unknown(size: int | None) -> str:
    """Format bytes in GiB."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
