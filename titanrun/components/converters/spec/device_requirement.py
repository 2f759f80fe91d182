"""The device that a converter needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceRequirement:
    """Device requirement: the oldest NVIDIA generation and the AMD architectures.

    `rocm_architectures` are ROCm's names of the AMD architectures, empty if none is supported.
    """

    feature: str
    min_compute_capability: tuple[int, int]
    rocm_architectures: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """Text such as `an NVIDIA GPU of compute capability 8.9 or later, or an AMD gfx942`."""
        major, minor = self.min_compute_capability
        nvidia = f"an NVIDIA GPU of compute capability {major}.{minor} or later"
        return (
            f"{nvidia}, or an AMD {' or '.join(self.rocm_architectures)}"
            if self.rocm_architectures
            else nvidia
        )
