"""The launch slot: how a run becomes processes."""

from typing import ClassVar, Literal

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import bookkeeping
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveInt


class LaunchConfig(ComponentConfig):
    """How a run becomes processes."""

    slot: ClassVar = "launch"
    is_slot: ClassVar = True
    default_name: ClassVar = "local"

    @property
    def ranks(self) -> int | None:
        """How many processes the recipe asks for; None where it leaves that to the machine."""
        return None


class LocalLaunchConfig(LaunchConfig):
    """Processes on this machine."""

    name: Literal["local"] = bookkeeping("local")
    builds: ClassVar = "titanrun.launch.local:start"
    nproc_per_node: OrAuto[PositiveInt] = bookkeeping("auto", unit="processes", resume=True, examples=[1])
    """Worker processes; `auto` is the number of accelerators, else 1."""
    max_restarts: NonNegativeInt = bookkeeping(0, resume=True)
    """How often the workers are started again after one died or hung, counted anew from each new checkpoint on; what another start would
    meet again (recipe, data, disk, memory, numbers that are none) is never tried again."""

    @property
    def ranks(self) -> int | None:
        """The worker processes, where the recipe names a number."""
        return None if self.nproc_per_node == AUTO else int(self.nproc_per_node)
