"""Launch choice `skypilot`: a run as a task of SkyPilot."""

import re
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping
from titanrun.config.types import MountPath, NonNegativeInt, PositiveInt, VariableName, Word
from titanrun.config.units import ByteSize
from titanrun.launch.config import LaunchConfig, ScriptLine, check_gpu_per_rank, check_volume_paths

ACCELERATORS = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9_.-]*)(:(?P<count>[1-9][0-9]*))?")


def validate_accelerators(text: str) -> str:
    """Validate accelerators of a machine: their kind, and their number after a colon."""
    if not ACCELERATORS.fullmatch(text):
        context = {"help": "write them as H100:8"}
        raise PydanticCustomError("accelerators", "not a kind and a number", context)
    return text


Accelerators: TypeAlias = Annotated[str, AfterValidator(validate_accelerators)]
MANAGED = ReadWhen(
    "settings-need-a-managed-job",
    ".managed",
    "is false",
    "set launch.managed: true, or remove it",
    values=(True,),
)


class SkyVolumeConfig(Config):
    """Volume of SkyPilot that every machine mounts."""

    volume: Word = bookkeeping(resume=True, examples=["runs"])
    """Name of the volume, as `sky volumes ls` lists it."""
    path: MountPath = bookkeeping(resume=True, examples=["/runs"])
    """Folder on the machines."""


class SkyPilotLaunchConfig(LaunchConfig):
    """Task of SkyPilot for `titanrun launch`: machines of a cloud or a cluster, through `sky`."""

    name: Literal["skypilot"] = bookkeeping("skypilot")
    builds: ClassVar = "titanrun.launch.skypilot.task_machine:start_on_machine"
    is_submitted: ClassVar = True
    infra: Word | None = bookkeeping(None, resume=True, examples=["aws/us-east-1"])
    """Cloud, region and zone, or cluster, as `sky` reads them: `aws`, `gcp/us-central1`, `k8s`;
    null: the cheapest that has the machines.
    """
    accelerators: Accelerators | None = bookkeeping(None, resume=True, examples=["H100:8"])
    """Accelerators of a machine, as `KIND:NUMBER`; null: none."""
    nproc_per_node: PositiveInt = bookkeeping(1, unit="processes", resume=True, examples=[8])
    """Worker processes per machine: one per accelerator."""
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Machines that train together."""
    cpus_per_node: PositiveInt | None = bookkeeping(None, unit="cores", resume=True, examples=[32])
    """Cores that a machine has at least; null: what `sky` chooses."""
    memory: ByteSize | None = bookkeeping(None, unit="bytes", resume=True, examples=["256GiB"])
    """Memory that a machine has at least; null: what `sky` chooses."""
    disk_size: ByteSize | None = bookkeeping(None, unit="bytes", resume=True, examples=["512GiB"])
    """Disk of a machine; null: what `sky` chooses."""
    use_spot: bool = bookkeeping(False, resume=True)
    """Whether machines may be taken away for a lower price."""
    image: Word | None = bookkeeping(None, resume=True, examples=["registry.example/titanrun:0.1"])
    """Container image; null: the image of the cloud."""
    setup: tuple[ScriptLine, ...] = bookkeeping(
        (), resume=True, examples=[["pip install titanrun"]], runs="shell"
    )
    """Shell lines that prepare each machine once, such as the installation of titanrun."""
    volumes: tuple[SkyVolumeConfig, ...] = bookkeeping(
        (), resume=True, examples=[[{"volume": "runs", "path": "/runs"}]]
    )
    """Volumes of the machines. dump_folder must lie in one of them, unless one machine saves its
    checkpoints to an address.
    """
    secrets: tuple[VariableName, ...] = bookkeeping((), resume=True, examples=[["HF_TOKEN"]])
    """Environment variables of this machine that the task gets as secrets."""
    managed: bool = bookkeeping(True, resume=True)
    """Whether SkyPilot starts the run again on new machines when it loses them; else the task runs
    once on machines that stay until `sky down`.
    """
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True, read_when=MANAGED)
    """How often a run that failed is started again. Lost machines and stops by a signal, which save
    first, do not count.
    """

    @property
    def world_size(self) -> int | None:
        """Number of workers on all machines."""
        return self.nproc_per_node * self.nnodes

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self.nnodes

    @property
    def gpus_per_node(self) -> int | None:
        """Number of accelerators of a machine, or None without."""
        found = ACCELERATORS.fullmatch(self.accelerators or "")
        return None if found is None else int(found["count"] or 1)

    @model_validator(mode="after")
    def check_machines(self) -> Self:
        """Require an accelerator per rank if any are requested."""
        check_gpu_per_rank(self.gpus_per_node, self.nproc_per_node, gpus_field="accelerators")
        return self

    @model_validator(mode="after")
    def check_volumes(self) -> Self:
        """Require a folder of its own for each volume."""
        check_volume_paths([volume.path for volume in self.volumes])
        return self
