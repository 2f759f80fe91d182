"""The launch slot: how a run becomes processes."""

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from annotated_types import Interval
from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict
from titanrun.config.fields import bookkeeping
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveInt, Text
from titanrun.config.units import ByteSize, Duration, seconds

HIGHEST_PORT = 65535
# what sbatch takes for --signal
LONGEST_NOTICE = 65535


def host_and_port(text: str) -> str:
    """`node-0:29500`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= HIGHEST_PORT:
        raise PydanticCustomError(
            "a_host_and_a_port", "neither", {"help": "write it as node-0:29500"}
        )
    return text


Endpoint: TypeAlias = Annotated[str, AfterValidator(host_and_port)]


class LaunchConfig(ComponentConfig):
    """How a run becomes processes."""

    slot: ClassVar = "launch"
    is_slot: ClassVar = True
    default_name: ClassVar = "local"
    is_submitted: ClassVar = False
    """Whether `titanrun launch` hands the run to a queue, which starts it elsewhere."""

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
    nproc_per_node: OrAuto[PositiveInt] = bookkeeping(
        "auto", unit="processes", resume=True, examples=[1]
    )
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
            raise conflict(
                message,
                "nnodes",
                "rdzv_endpoint",
                help="set rdzv_endpoint to host:port of one of them",
            )
        if self.node_rank is not None and self.node_rank >= self.nnodes:
            message = f"there is no machine {self.node_rank}: {self.nnodes} {'is' if self.nnodes == 1 else 'are'} counted from 0"
            raise conflict(
                message,
                "node_rank",
                "nnodes",
                help=f"use 0 to {self.nnodes - 1}"
                if self.nnodes > 1
                else "set nnodes, or leave it out",
            )
        return self


def one_line(text: str) -> str:
    """A line of a script, without the character that ends it."""
    if "\n" in text or not text.strip():
        raise PydanticCustomError(
            "one_line", "not one line", {"help": "write each line as an item of its own"}
        )
    return text


Line: TypeAlias = Annotated[str, AfterValidator(one_line)]


class SlurmLaunchConfig(LaunchConfig):
    """A job of Slurm, for `titanrun launch`: a batch script in the run directory, which srun starts the ranks from."""

    name: Literal["slurm"] = bookkeeping("slurm")
    builds: ClassVar = "titanrun.launch.slurm:start"
    is_submitted: ClassVar = True
    nproc_per_node: PositiveInt = bookkeeping(1, unit="processes", resume=True, examples=[8])
    """Worker processes of each node: one for each of its accelerators."""
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Nodes that train together."""
    gpus_per_node: PositiveInt | None = bookkeeping(None, resume=True, examples=[8])
    """Accelerators asked for on each node; null: none, or those that the partition gives with a node."""
    cpus_per_task: PositiveInt | None = bookkeeping(None, unit="cores", resume=True, examples=[12])
    """Cores of each worker; null: as many as the cluster gives."""
    memory: ByteSize | None = bookkeeping(None, unit="bytes", resume=True, examples=["512GiB"])
    """Memory asked for on each node, rounded up to MiB; null: as much as the cluster gives."""
    partition: Text | None = bookkeeping(None, resume=True, examples=["h100"])
    """The partition; null: the cluster's own choice."""
    account: Text | None = bookkeeping(None, resume=True, examples=["research"])
    """Who pays."""
    qos: Text | None = bookkeeping(None, resume=True, examples=["low"])
    """The quality of service."""
    time_limit: Duration | None = bookkeeping(None, resume=True, examples=["12h"])
    """How long the job may take each time it is started; null: as long as the partition lets it."""
    save_seconds: Annotated[int, Interval(gt=0, le=LONGEST_NOTICE)] = bookkeeping(
        300, unit="seconds", resume=True
    )
    """How long before the time limit the ranks are told to save and stop. Slurm may tell them up to a minute earlier."""
    requeue: bool = bookkeeping(True, resume=True)
    """Whether the job goes back into the queue, and on from its last checkpoint, when it is preempted, loses a node, or has used up its
    time before the last step."""
    setup: tuple[Line, ...] = bookkeeping(
        (), resume=True, examples=[["module load cuda", "export NCCL_DEBUG=WARN"]]
    )
    """Lines of shell before the ranks are started."""
    options: tuple[Line, ...] = bookkeeping(
        (), resume=True, examples=[["--constraint=nvlink", "--exclude=node07"]]
    )
    """Further options of sbatch, a line each; they come last, and win."""

    @property
    def ranks(self) -> int | None:
        """The worker processes of all nodes."""
        return self.nproc_per_node * self.nnodes

    @property
    def nodes(self) -> int:
        """How many machines take part."""
        return self.nnodes

    @model_validator(mode="after")
    def there_is_enough(self) -> Self:
        """Each rank has an accelerator where some are asked for, and time to train before it has to save."""
        if self.gpus_per_node is not None and self.gpus_per_node < self.nproc_per_node:
            message = f"{self.nproc_per_node} ranks on a node cannot share {self.gpus_per_node} accelerators"
            raise conflict(message, "nproc_per_node", "gpus_per_node", help="ask for one a rank")
        if self.time_limit is not None and seconds(self.time_limit) <= self.save_seconds:
            message = f"the ranks are told to save {self.save_seconds} s before a limit of {self.time_limit}, before they start"
            raise conflict(
                message,
                "save_seconds",
                "time_limit",
                help="make save_seconds smaller, or time_limit longer",
            )
        return self

    @model_validator(mode="after")
    def options_are_options(self) -> Self:
        """Each begins with a dash, as sbatch reads it."""
        strange = next((option for option in self.options if not option.startswith("-")), None)
        if strange is not None:
            raise conflict(
                f"'{strange}' is no option of sbatch",
                "options",
                help="write it with its dashes: --constraint=nvlink",
            )
        return self
