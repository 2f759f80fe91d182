"""The launch slot: how a run becomes processes."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping
from titanrun.config.types import OrAuto, PositiveInt


class LaunchConfig(ComponentConfig):
    """How a run becomes processes."""

    slot: ClassVar = "launch"
    is_slot: ClassVar = True
    default_name: ClassVar = "local"


class LocalLaunchConfig(LaunchConfig):
    """Processes on this machine."""

    name: Literal["local"] = bookkeeping("local")
    builds: ClassVar = "titanrun.launch.local:start"
    nproc_per_node: OrAuto[PositiveInt] = bookkeeping("auto", unit="processes", examples=[1])
    """Worker processes; `auto` is the number of accelerators, else 1."""
