"""Launch choice `kubernetes`: a run as an Indexed Job."""

import re
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import bookkeeping
from titanrun.config.json_patch import PATCH_HELP, parse_patch
from titanrun.config.redaction import star_out_assigned_secrets
from titanrun.config.types import MountPath, NonNegativeInt, PositiveInt, Word, validate_line
from titanrun.config.units import ByteSize
from titanrun.launch.config import LaunchConfig, check_gpu_per_rank, check_volume_paths

# names of objects, RFC 1123
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LABEL_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{LABEL_PART}"
LABEL = re.compile(rf"{LABEL_KEY}=({LABEL_PART})?")
TOLERATION = re.compile(
    rf"(?P<key>{LABEL_KEY})(=(?P<value>{LABEL_PART}))?"
    r"(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def validate_object_name(text: str) -> str:
    """Validate the name of a Kubernetes object."""
    if not OBJECT_NAME.fullmatch(text):
        context = {"help": "use lower-case letters, digits, dashes and dots, such as hf-token"}
        raise PydanticCustomError("a_kubernetes_name", "not a name of Kubernetes", context)
    return text


def validate_label(text: str) -> str:
    """Validate a label: `key=value`."""
    if not LABEL.fullmatch(text):
        context = {"help": "write it as team=research"}
        raise PydanticCustomError("a_label", "not a label", context)
    return text


def validate_toleration(text: str) -> str:
    """Validate a toleration as kubectl writes taints: `key=value:Effect`."""
    if not TOLERATION.fullmatch(text):
        context = {"help": "write it as nvidia.com/gpu:NoSchedule or dedicated=train:NoExecute"}
        raise PydanticCustomError("a_toleration", "not a toleration", context)
    return text


def validate_patch_line(text: str) -> str:
    """Validate a line of a JSON patch, in which no secret is written."""
    try:
        parse_patch(validate_line(text))
    except ValueError as error:
        context = {"help": PATCH_HELP}
        raise PydanticCustomError(
            "a_json_patch", "{reason}", {**context, "reason": str(error)}
        ) from error
    if star_out_assigned_secrets(text) != text:
        context = {"help": "put it into a Secret, and name that in launch.secrets"}
        raise PydanticCustomError("no_secret", "contains the value of a secret", context)
    return text


ObjectName: TypeAlias = Annotated[str, AfterValidator(validate_object_name)]
Label: TypeAlias = Annotated[str, AfterValidator(validate_label)]
Toleration: TypeAlias = Annotated[str, AfterValidator(validate_toleration)]
PatchLine: TypeAlias = Annotated[str, AfterValidator(validate_patch_line)]


class VolumeConfig(Config):
    """Volume that every pod mounts."""

    claim: ObjectName = bookkeeping(resume=True, examples=["runs"])
    """Name of a PersistentVolumeClaim that all pods may mount (ReadWriteMany)."""
    path: MountPath = bookkeeping(resume=True, examples=["/runs"])
    """Folder in the pods."""


class KubernetesLaunchConfig(LaunchConfig):
    """Kubernetes Job for `titanrun launch`: a pod per node, submitted with kubectl."""

    name: Literal["kubernetes"] = bookkeeping("kubernetes")
    builds: ClassVar = "titanrun.launch.kubernetes.job_pod:start_pod"
    is_submitted: ClassVar = True
    image: Word = bookkeeping(resume=True, examples=["registry.example/titanrun:0.1"])
    """Container image in which `titanrun` is installed."""
    nproc_per_node: PositiveInt = bookkeeping(1, unit="processes", resume=True, examples=[8])
    """Worker processes per pod: one per accelerator."""
    nnodes: PositiveInt = bookkeeping(1, unit="machines", resume=True)
    """Pods that train together."""
    gpus_per_node: PositiveInt | None = bookkeeping(None, resume=True, examples=[8])
    """Accelerators requested per pod; null: none."""
    gpu_resource: Word = bookkeeping("nvidia.com/gpu", resume=True, examples=["amd.com/gpu"])
    """Resource name of the accelerators."""
    cpus_per_node: PositiveInt | None = bookkeeping(None, unit="cores", resume=True, examples=[64])
    """Cores requested per pod; null: the default of the namespace."""
    memory: ByteSize | None = bookkeeping(None, unit="bytes", resume=True, examples=["512GiB"])
    """Memory of a pod, requested and at most; null: the default of the namespace."""
    shared_memory: ByteSize | None = bookkeeping(
        None, unit="bytes", resume=True, examples=["64GiB"]
    )
    """Size of /dev/shm, which counts as memory of the pod; null: as much as the node allows."""
    namespace: ObjectName | None = bookkeeping(None, resume=True, examples=["research"])
    """Namespace; null: kubectl's own."""
    context: Word | None = bookkeeping(None, resume=True, examples=["cluster-a"])
    """Context of kubectl's configuration; null: the current one."""
    volumes: tuple[VolumeConfig, ...] = bookkeeping(
        (), resume=True, examples=[[{"claim": "runs", "path": "/runs"}]]
    )
    """Volumes of the pods. dump_folder must lie in one of them."""
    secrets: tuple[ObjectName, ...] = bookkeeping((), resume=True, examples=[["hf-token"]])
    """Secrets whose keys become environment variables of the pods."""
    service_account: ObjectName | None = bookkeeping(None, resume=True, examples=["trainer"])
    """Service account of the pods; null: that of the namespace."""
    node_selector: tuple[Label, ...] = bookkeeping((), resume=True, examples=[["gpu=h100"]])
    """Labels that nodes must have."""
    tolerations: tuple[Toleration, ...] = bookkeeping(
        (), resume=True, examples=[["nvidia.com/gpu:NoSchedule"]]
    )
    """Taints of nodes that the pods tolerate, as `key`, `key=value` or `key=value:Effect`."""
    priority_class: ObjectName | None = bookkeeping(None, resume=True, examples=["low"])
    """Priority class of the pods; null: that of the namespace."""
    queue: ObjectName | None = bookkeeping(None, resume=True, examples=["team-queue"])
    """Kueue's LocalQueue, which starts the pods of a run together; null: Kueue is not used."""
    save_seconds: PositiveInt = bookkeeping(300, unit="seconds", resume=True)
    """How long the pods have to save after SIGTERM before they are killed."""
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True)
    """How often all pods are started again after a failure. Preemption does not count, and what
    another start would meet again (recipe, data, disk, memory, NaN or infinite values) fails.
    """
    labels: tuple[Label, ...] = bookkeeping((), resume=True, examples=[["team=research"]])
    """Further labels of Job and pods."""
    patch: tuple[PatchLine, ...] = bookkeeping(
        (),
        resume=True,
        examples=[["add /spec/ttlSecondsAfterFinished 86400"]],
        runs="shell",
    )
    """Changes of the Job (RFC 6902), one operation per line: `add PATH VALUE`,
    `replace PATH VALUE` or `remove PATH`, with VALUE as JSON. They come last and take precedence.
    """

    @property
    def world_size(self) -> int | None:
        """Number of workers in all pods."""
        return self.nproc_per_node * self.nnodes

    @property
    def num_nodes(self) -> int:
        """Number of pods."""
        return self.nnodes

    @model_validator(mode="after")
    def check_resources(self) -> Self:
        """Require an accelerator per rank if any are requested, and room for the shared memory."""
        check_gpu_per_rank(self.gpus_per_node, self.nproc_per_node)
        if (
            self.memory is not None
            and self.shared_memory is not None
            and self.shared_memory >= self.memory
        ):
            raise conflict_error(
                "shared_memory is not below memory, of which it is a part",
                "shared_memory",
                "memory",
                hint="decrease shared_memory, or omit it",
            )
        return self

    @model_validator(mode="after")
    def check_volumes(self) -> Self:
        """Require a folder of its own for each volume."""
        check_volume_paths([volume.path for volume in self.volumes])
        return self
