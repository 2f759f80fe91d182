"""Peak FLOP/s of accelerators, the reference of MFU."""

# Dense bf16 matrix FLOP/s of one device from the vendors' data sheets, by a part of the device's
# name. The first match counts: "H200" comes before "H20", "GB200" before "B200".
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
    # of one of its two dies, which torch calls a device
    ("MI250X", 191.5e12),
)


def get_peak_flops(device_name: str) -> float | None:
    """Return the dense bf16 FLOP/s of a device, None if unknown.

    The name is, for example, "NVIDIA H100 80GB HBM3".
    """
    # a slice of a device runs at a fraction of its peak
    if " MIG " in device_name:
        return None
    lowered = device_name.lower()
    return next((flops for part, flops in PEAK_FLOPS if part.lower() in lowered), None)
