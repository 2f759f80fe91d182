"""Peak arithmetic speed of accelerators, which MFU is measured against."""

# Dense bf16 matrix FLOP/s of one device from the makers' data sheets, by a part of the device's name. The first match counts:
# "H200" stands before "H20", "GB200" before "B200".
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("A100", 312e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("H20", 148e12),
    ("GB300", 2.5e15),
    ("GB200", 2.5e15),
    ("B300", 2.25e15),
    ("B200", 2.25e15),
    ("L40S", 362e12),
    ("A6000", 154.85e12),
    ("MI355X", 2.5e15),
    ("MI325X", 1.3e15),
    ("MI300X", 1.3e15),
    # of one of its two dies, which is what torch calls a device
    ("MI250X", 191.5e12),
)


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a device, such as "NVIDIA H100 80GB HBM3"; None where it is not known."""
    # a slice of a device runs at a share of its peak
    if " MIG " in device_name:
        return None
    lowered = device_name.lower()
    return next((flops for part, flops in PEAK_FLOPS if part.lower() in lowered), None)
