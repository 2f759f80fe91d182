"""Launch slot: starting the processes of a run."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from annotated_types import Interval
from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import ComponentConfig
from titanrun.config.conflict import conflict_error
from titanrun.config.control_characters import CONTROL_CHARACTER
from titanrun.config.fields import ReadWhen, bookkeeping
from titanrun.config.types import AUTO, NonNegativeInt, OrAuto, PositiveInt, Word, validate_word
from titanrun.config.units import ByteSize, Duration, duration_to_seconds

HIGHEST_PORT = 65535
# the limit of sbatch --signal
MAX_NOTICE_SECONDS = 65535


def validate_host_and_port(text: str) -> str:
    """Validate an endpoint such as `node-0:29500`."""
    host, _, port = validate_word(text).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= HIGHEST_PORT:
        raise PydanticCustomError(
            "a_host_and_a_port", "neither", {"help": "write it as node-0:29500"}
        )
    return text


Endpoint: TypeAlias = Annotated[str, AfterValidator(validate_host_and_port)]


class LaunchConfig(ComponentConfig):
    """How the processes of a run are started."""

    slot: ClassVar = "launch"
    is_slot: ClassVar = True
    default_name: ClassVar = "local"
    is_submitted: ClassVar = False
    """Whether `titanrun launch` submits the run to a queue, which starts it elsewhere."""
    name: str = bookkeeping()

    @property
    def world_size(self) -> int | None:
        """Number of processes on all nodes, None if it depends on the machine."""
        return None

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return 1


WITH_GROUPS = ReadWhen(
    "settings-need-replica-groups",
    "fault_tolerance.enable",
    "is false",
    "set fault_tolerance.enable: true, or remove it",
    values=(True,),
)
SEVERAL_MACHINES = ReadWhen(
    "settings-need-nodes",
    ".nnodes",
    "is 1",
    "set launch.nnodes above 1, or remove it",
    not_values=(1,),
)


class LocalLaunchConfig(LaunchConfig):
    """Processes on this machine, or on each of several machines that run the same command."""

    name: Literal["local"] = bookkeeping("local")
    builds: ClassVar = "titanrun.launch.local_launcher:start_local_run"
    nproc_per_node: OrAuto[PositiveInt] = bookkeeping(
        "auto", unit="processes", resume=True, examples=[1]
    )
    """Worker processes per machine; `auto` is the number of its accelerators, else 1."""
    max_restarts: NonNegativeInt = bookkeeping(0, resume=True)
    """How often the workers are restarted after one died or hung, counted from the last new
    checkpoint. Failures that would recur (recipe, data, disk, memory, NaN or infinite values) are
    never retried.
    """
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Machines that train together. The same command is started on each, and they find each other
    at rdzv_endpoint.
    """
    node_rank: NonNegativeInt | None = bookkeeping(None, resume=True, examples=[0])
    """Rank of this machine, from 0; null: numbered in order of arrival. All machines train the
    recipe of machine 0.
    """
    rdzv_endpoint: Endpoint | None = bookkeeping(
        None, resume=True, examples=["node-0:29500"], read_when=SEVERAL_MACHINES
    )
    """Host and free port of the rendezvous on one of the machines; with node_rank, the host of
    machine 0.
    """
    rdzv_id: Word = bookkeeping(
        "titanrun", resume=True, examples=["job-1234"], read_when=SEVERAL_MACHINES
    )
    """Identifier shared by the machines of one run, if several runs use the same endpoint."""
    rdzv_timeout_seconds: PositiveInt = bookkeeping(
        600, unit="seconds", resume=True, read_when=SEVERAL_MACHINES
    )
    """How long machines wait for each other."""

    @property
    def world_size(self) -> int | None:
        """Number of workers on all machines, None if the recipe leaves it to the machine."""
        return None if self.nproc_per_node == AUTO else int(self.nproc_per_node) * self.nnodes

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self.nnodes

    @model_validator(mode="after")
    def check_rendezvous(self) -> Self:
        """Require an endpoint for several machines, and a node rank below their number."""
        if self.nnodes > 1 and self.rdzv_endpoint is None:
            message = f"rdzv_endpoint is not set, but {self.nnodes} machines need a rendezvous"
            raise conflict_error(
                message,
                "nnodes",
                "rdzv_endpoint",
                hint="set rdzv_endpoint to host:port of one of the machines",
            )
        if self.node_rank is not None and self.node_rank >= self.nnodes:
            message = (
                f"node_rank {self.node_rank} is not below nnodes {self.nnodes}, counted from 0"
            )
            raise conflict_error(
                message,
                "node_rank",
                "nnodes",
                hint=f"use 0 to {self.nnodes - 1}"
                if self.nnodes > 1
                else "set nnodes, or omit node_rank",
            )
        return self


def validate_one_line(text: str) -> str:
    """Validate one line of a script: no line break, no control character except tabs."""
    if CONTROL_CHARACTER.search(text.replace("\t", " ")) or not text.strip():
        raise PydanticCustomError(
            "one_line", "not one line", {"help": "write each line as a separate item"}
        )
    return text


ScriptLine: TypeAlias = Annotated[str, AfterValidator(validate_one_line)]


class SlurmLaunchConfig(LaunchConfig):
    """Slurm job for `titanrun launch`: a batch script in the run directory that starts srun."""

    name: Literal["slurm"] = bookkeeping("slurm")
    builds: ClassVar = "titanrun.launch.slurm_launcher:start_slurm_rank"
    is_submitted: ClassVar = True
    nproc_per_node: PositiveInt = bookkeeping(1, unit="processes", resume=True, examples=[8])
    """Worker processes per node: one per accelerator."""
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Nodes that train together."""
    gpus_per_node: PositiveInt | None = bookkeeping(None, resume=True, examples=[8])
    """Accelerators requested per node; null: none, or those that the partition assigns with
    a node.
    """
    cpus_per_task: PositiveInt | None = bookkeeping(None, unit="cores", resume=True, examples=[12])
    """Cores per worker; null: the default of the cluster."""
    memory: ByteSize | None = bookkeeping(None, unit="bytes", resume=True, examples=["512GiB"])
    """Memory requested per node, rounded up to MiB; null: the default of the cluster."""
    partition: Word | None = bookkeeping(None, resume=True, examples=["h100"])
    """Partition; null: the default of the cluster."""
    account: Word | None = bookkeeping(None, resume=True, examples=["research"])
    """Account to charge."""
    qos: Word | None = bookkeeping(None, resume=True, examples=["low"])
    """Quality of service."""
    time_limit: Duration | None = bookkeeping(None, resume=True, examples=["12h"])
    """Time limit of the job for each start; null: the limit of the partition."""
    save_seconds: Annotated[int, Interval(gt=0, le=MAX_NOTICE_SECONDS)] = bookkeeping(
        300, unit="seconds", resume=True
    )
    """How long before the time limit the ranks are signaled to save and stop. Slurm may signal up
    to a minute earlier.
    """
    requeue: bool = bookkeeping(True, resume=True)
    """Whether the job is requeued, and resumes from its last checkpoint, when it is preempted,
    loses a node, or reaches its time limit before the last step.
    """
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True, read_when=WITH_GROUPS)
    """How often a replica group is started again without a new step before it is given up."""
    setup: tuple[ScriptLine, ...] = bookkeeping(
        (),
        resume=True,
        examples=[["module load cuda", "export NCCL_DEBUG=WARN"]],
        runs="shell",
    )
    """Shell lines to run before the ranks are started."""
    options: tuple[ScriptLine, ...] = bookkeeping(
        (),
        resume=True,
        examples=[["--constraint=nvlink", "--exclude=node07"]],
        runs="shell",
    )
    """Further options of sbatch, one per line. They come last and take precedence."""

    @property
    def world_size(self) -> int | None:
        """Number of workers on all nodes."""
        return self.nproc_per_node * self.nnodes

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self.nnodes

    @model_validator(mode="after")
    def check_resources(self) -> Self:
        """Require an accelerator per rank if any are requested, and time to train before saving."""
        check_gpu_per_rank(self.gpus_per_node, self.nproc_per_node)
        if (
            self.time_limit is not None
            and duration_to_seconds(self.time_limit) <= self.save_seconds
        ):
            message = (
                f"save_seconds {self.save_seconds} is not shorter than time_limit {self.time_limit}"
            )
            raise conflict_error(
                message,
                "save_seconds",
                "time_limit",
                hint="decrease save_seconds, or increase time_limit",
            )
        return self

    @model_validator(mode="after")
    def check_sbatch_options(self) -> Self:
        """Require each option to begin with a dash, as sbatch reads it."""
        strange = next((option for option in self.options if not option.startswith("-")), None)
        if strange is not None:
            raise conflict_error(
                f"'{strange}' is not an option of sbatch",
                "options",
                hint="write it with its dashes: --constraint=nvlink",
            )
        return self


def check_gpu_per_rank(
    gpus_per_node: int | None, nproc_per_node: int, *, gpus_field: str = "gpus_per_node"
) -> None:
    """Raise a conflict if accelerators are requested, but fewer than ranks.

    `gpus_field` is the field that requests them.
    """
    if gpus_per_node is not None and gpus_per_node < nproc_per_node:
        raise conflict_error(
            f"nproc_per_node {nproc_per_node} exceeds {gpus_field} {gpus_per_node}",
            "nproc_per_node",
            gpus_field,
            hint="request one per rank",
        )


def check_volume_paths(paths: Sequence[str]) -> None:
    """Raise a conflict if two volumes have the same folder."""
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise conflict_error(
            f"two volumes are mounted at '{twice}'",
            "volumes",
            hint="give each a folder of its own",
        )
