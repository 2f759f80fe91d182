"""What this machine is: processor, memory and disk, read without torch."""

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
# what x86 and ARM call their bf16 arithmetic; without it every product is emulated in fp32
BF16_FLAGS = ("amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16", "svebf16")
GIB = 1024**3
DEVICES = Path("/dev")
# the driver's file, those of accelerators, and the variables that say which of them a process may see
ACCELERATORS = {
    ("nvidiactl", "nvidia[0-9]*"): ("CUDA_VISIBLE_DEVICES",),
    ("kfd", "dri/renderD*"): (
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ),
}


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU; `bf16` holds the instructions that compute in bf16, None where the system does not say."""

    model: str
    cores: int
    bf16: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of main memory; `limit` is what a container may use, None where nothing limits it; unknown figures are None."""

    total: int | None
    available: int | None
    limit: int | None


def processor(cpuinfo: str | None = None) -> Processor:
    """The CPU of this machine, or the one that the text of a /proc/cpuinfo describes."""
    text = cpuinfo if cpuinfo is not None else read(CPUINFO)
    known = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, re.MULTILINE))
    flags = (known.get("flags") or known.get("Features") or "").split()
    model = known.get("model name") or platform.processor() or platform.machine()
    return Processor(
        model,
        usable_cores(),
        tuple(flag for flag in BF16_FLAGS if flag in flags) if flags else None,
    )


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def accelerators(environ: Mapping[str, str], devices: Path = DEVICES) -> int:
    """Accelerators that training may use here: NVIDIA's, else AMD's, as far as the environment does not hide them."""
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


def memory(meminfo: str | None = None) -> Memory:
    """Main memory of this machine, or the one that the text of a /proc/meminfo describes."""
    text = meminfo if meminfo is not None else read(MEMINFO)
    kib: Mapping[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    total = int(kib["MemTotal"]) * 1024 if "MemTotal" in kib else None
    available = int(kib["MemAvailable"]) * 1024 if "MemAvailable" in kib else None
    limits = [int(written) for path in CGROUP_LIMITS if (written := read(path).strip()).isdigit()]
    limit = min(limits, default=None)
    return Memory(
        total, available, limit if limit is not None and (total is None or limit < total) else None
    )


def free_disk(folder: Path) -> int:
    """Bytes that are free where a folder lies."""
    return shutil.disk_usage(folder).free


def read(path: Path) -> str:
    """A small system file; empty where this system has no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def in_gib(size: int | None) -> str:
    """Bytes as people read them."""
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
