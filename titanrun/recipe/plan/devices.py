"""Memory and speed of accelerators by their usual names.

The speed is that of dense bf16 matrix products, from the vendors' data sheets.
"""

from dataclasses import dataclass

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Device:
    """Accelerator model.

    `memory_gib` is the memory left to a process after the driver's share, about 2% of the total.
    """

    name: str
    memory_gib: float
    bf16_flops: float


DEFAULT_DEVICE = "h100"
DEVICES = {
    "a100-40": Device("A100 40 GB", 39, 312e12),
    "a100": Device("A100 80 GB", 78, 312e12),
    "h100": Device("H100 80 GB", 78, 989e12),
    "h200": Device("H200 141 GB", 138, 989e12),
    "b200": Device("B200 180 GB", 175, 2250e12),
    "mi300x": Device("MI300X 192 GB", 188, 1300e12),
}
