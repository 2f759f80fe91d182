"""The launch slot: how a run becomes processes."""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict
from titanrun.config.fields import bookkeeping
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveInt, Text

HIGHEST_PORT = 65535


def host_and_port(text: str) -> str:
    """`node-0:29500`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= HIGHEST_PORT:
        raise PydanticCustomError("a_host_and_a_port", "neither", {"help": "write it as node-0:29500"})
    return text


Endpoint: TypeAlias = Annotated[str, AfterValidator(host_and_port)]


class LaunchConfig(ComponentConfig):
    """How a run becomes processes."""

    slot: ClassVar = "launch"
    is_slot: ClassVar = True
    default_name: ClassVar = "local"

    @property
    def ranks(self) -> int | None:
        """How many processes the recipe asks for, on all nodes; None where it leaves that to the machine."""
        return None

    @property
    def nodes(self) -> int:
        """How many machines take part."""
        return 1


class LocalLaunchConfig(LaunchConfig):
    """Processes on this machine, or on each of several on which the same command is started."""

    name: Literal["local"] = bookkeeping("local")
    builds: ClassVar = "titanrun.launch.local:start"
    nproc_per_node: OrAuto[PositiveInt] = bookkeeping("auto", unit="processes", resume=True, examples=[1])
    """Worker processes of each machine; `auto` is the number of its accelerators, else 1."""
    max_restarts: NonNegativeInt = bookkeeping(0, resume=True)
    """How often the workers are started again after one died or hung, counted anew from each new checkpoint on; what another start would
    meet again (recipe, data, disk, memory, numbers that are none) is never tried again."""
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Machines that train together: the same command is started on each, and they find each other at rdzv_endpoint."""
    node_rank: NonNegativeInt | None = bookkeeping(None, resume=True, examples=[0])
    """Which of the machines this is, from 0; null: they are numbered as they arrive. The first one's recipe is what all train."""
    rdzv_endpoint: Endpoint | None = bookkeeping(None, resume=True, examples=["node-0:29500"])
    """Host and free port of one of the machines, where all meet; with a node_rank the host of machine 0."""
    rdzv_id: Text = bookkeeping("titanrun", resume=True, examples=["job-1234"])
    """What machines of one run have in common, where several runs meet at one endpoint."""
    rdzv_timeout_seconds: PositiveInt = bookkeeping(600, unit="seconds", resume=True)
    """How long machines wait for each other."""

    @property
    def ranks(self) -> int | None:
        """The worker processes of all machines, where the recipe names a number."""
        return None if self.nproc_per_node == AUTO else int(self.nproc_per_node) * self.nnodes

    @property
    def nodes(self) -> int:
        """How many machines take part."""
        return self.nnodes

    @model_validator(mode="after")
    def machines_can_meet(self) -> Self:
        """Several machines need a place to meet, and are counted from 0."""
        if self.nnodes > 1 and self.rdzv_endpoint is None:
            message = f"{self.nnodes} machines train together, and nobody says where they meet"
            raise conflict(message, "nnodes", "rdzv_endpoint", help="set rdzv_endpoint to host:port of one of them")
        if self.node_rank is not None and self.node_rank >= self.nnodes:
            message = f"there is no machine {self.node_rank}: {self.nnodes} {'is' if self.nnodes == 1 else 'are'} counted from 0"
            raise conflict(
                message, "node_rank", "nnodes", help=f"use 0 to {self.nnodes - 1}" if self.nnodes > 1 else "set nnodes, or leave it out"
            )
        return self
