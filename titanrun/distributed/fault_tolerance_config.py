"""The fault_tolerance section: replica groups that may fail while the others train on."""

import platform
import sys
from typing import Annotated, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from titanrun.config.base import Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import ReadWhen, bookkeeping, numerics, performance
from titanrun.config.types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Text,
    validate_word,
)

ENABLED = ReadWhen(
    "settings-need-replica-groups",
    ".enable",
    "is false",
    "set fault_tolerance.enable: true, or remove it",
    values=(True,),
)
OWN_LIGHTHOUSE = (
    ENABLED,
    ReadWhen(
        "shared-lighthouses-have-their-own-times",
        ".lighthouse",
        "names one that is not started here",
        "start the lighthouse with --heartbeat_timeout_ms, and remove it",
        values=(None,),
    ),
)
SYNCED = (
    ENABLED,
    ReadWhen(
        "settings-need-semi-sync",
        ".semi_sync_method",
        "is null",
        "set fault_tolerance.semi_sync_method, or remove it",
        values=("local_sgd", "diloco"),
    ),
)
OUTER = (
    *SYNCED,
    ReadWhen(
        "settings-need-diloco",
        ".semi_sync_method",
        "is local_sgd",
        "use semi_sync_method: diloco, or remove it",
        values=("diloco",),
    ),
)
COUNTED = (
    *OUTER,
    ReadWhen(
        "listed-fragments-are-counted",
        ".module_fqns_per_model_fragment",
        "lists the fragments",
        "remove one of the two",
        values=(None,),
    ),
)
WHEEL_PLATFORM = ("Linux", "x86_64")
WHEEL_PYTHONS = ((3, 10), (3, 11), (3, 12), (3, 13))
QUANTIZED_SUMS = "groups that communicate over NCCL"
LIGHTHOUSE_EXAMPLE = "http://node-0:29510"


def validate_lighthouse(text: str) -> str:
    """Validate the address of a lighthouse: `http://HOST:PORT`."""
    address = urlsplit(validate_word(text))
    try:
        port = address.port
    except ValueError:
        port = None
    if text.lower() != f"http://{address.hostname}:{port}" or not port:
        context = {"help": f"write it as {LIGHTHOUSE_EXAMPLE}"}
        raise PydanticCustomError("a_lighthouse", "not the address of a lighthouse", context)
    return text


LighthouseAddress: TypeAlias = Annotated[str, AfterValidator(validate_lighthouse)]


class FaultToleranceConfig(Config):
    """Replica groups of torchft: each trains a share of every step, and a lost one is replaced."""

    enable: bool = performance(False, resume=True)
    """Whether the run consists of replica groups, each with all weights. A group that fails removes
    no sequence from a step: the step is repeated by the others."""
    group_size: PositiveInt = performance(2, unit="groups", resume=True, read_when=ENABLED)
    """Replica groups. Each has launch.nproc_per_node ranks."""
    replica_id: NonNegativeInt | None = bookkeeping(
        None, resume=True, read_when=ENABLED, examples=[0]
    )
    """Group that this command starts, from 0, where each group is on a machine of its own. null:
    the command starts all groups on this machine."""
    lighthouse: LighthouseAddress | None = bookkeeping(
        None, resume=True, read_when=ENABLED, examples=[LIGHTHOUSE_EXAMPLE]
    )
    """Address at which groups on several machines find each other. null: the command starts a
    lighthouse on this machine."""
    min_replica_size: PositiveInt = performance(1, unit="groups", resume=True, read_when=ENABLED)
    """Groups that a step needs. With fewer, the others wait."""
    process_group_timeout_ms: PositiveInt = performance(
        120_000, unit="milliseconds", resume=True, read_when=ENABLED
    )
    """Longest time that groups wait for each other within a step, and for the state of another
    group. It must be longer than a forward and backward pass."""
    quorum_timeout_ms: PositiveInt = performance(
        600_000, unit="milliseconds", resume=True, read_when=ENABLED
    )
    """Longest time that a group waits before a step for the others, or for the lighthouse."""
    join_timeout_ms: PositiveInt = performance(
        60_000, unit="milliseconds", resume=True, read_when=ENABLED
    )
    """Longest time that a step waits for a group that is alive and not ready, as during a save."""
    heartbeat_timeout_ms: PositiveInt = performance(
        5000, unit="milliseconds", resume=True, read_when=OWN_LIGHTHOUSE
    )
    """Time without a sign of life after which a group counts as lost."""
    semi_sync_method: Literal["local_sgd", "diloco"] | None = numerics(None, read_when=ENABLED)
    """Algorithm of groups that train on their own and agree every sync_steps steps: `local_sgd`
    averages their weights, `diloco` applies the mean of what they changed by an outer optimizer.
    null: they agree on every step."""
    sync_steps: PositiveInt = numerics(5, unit="steps", read_when=SYNCED)
    """Steps between two syncs of a weight."""
    num_fragments: PositiveInt = numerics(1, read_when=COUNTED)
    """Parts of the model that DiLoCo syncs in turn, one every sync_steps / num_fragments steps.
    Layers are split evenly; embedding and head count as one layer each."""
    module_fqns_per_model_fragment: tuple[tuple[Text, ...], ...] | None = numerics(
        None, read_when=OUTER
    )
    """Names of the modules of each fragment. null: split by num_fragments."""
    fragment_sync_delay: NonNegativeInt = numerics(0, unit="steps", read_when=OUTER)
    """Steps that a group trains on while the sync of a fragment is under way."""
    fragment_update_alpha: Fraction = numerics(0.0, read_when=OUTER)
    """Share of a group's own weights in its weights after a sync."""
    should_quantize: bool = numerics(False, not_built=QUANTIZED_SUMS, read_when=OUTER)
    """Whether changes are summed in 8 bits."""
    outer_lr: PositiveFloat = numerics(0.7, read_when=OUTER)
    """Learning rate of DiLoCo's outer optimizer, which is SGD."""
    outer_momentum: NonNegativeFloat = numerics(0.9, read_when=OUTER)
    """Momentum of the outer optimizer."""
    outer_nesterov: bool = numerics(True, read_when=OUTER)
    """Whether the momentum of the outer optimizer is Nesterov's."""

    @property
    def fragment_count(self) -> int:
        """Fragments that are synced in turn: 1 with LocalSGD."""
        if self.semi_sync_method != "diloco":
            return 1
        listed = self.module_fqns_per_model_fragment
        return self.num_fragments if listed is None else len(listed)

    @property
    def sync_interval(self) -> int:
        """Steps between two syncs, each of one fragment."""
        return self.sync_steps // self.fragment_count

    @property
    def extra(self) -> str | None:
        """Extra of titanrun with the package that the groups need, None if there are none."""
        return "torchft" if self.enable else None

    @property
    def missing_wheel(self) -> str | None:
        """What says that the package of the extra has no wheel for this machine, None if it has."""
        python = sys.version_info[:2]
        if (platform.system(), platform.machine()) == WHEEL_PLATFORM and python in WHEEL_PYTHONS:
            return None
        return (
            "torchft has wheels only for Linux on x86_64 with CPython 3.10 to 3.13; this is "
            f"{platform.system()} on {platform.machine()} with Python {python[0]}.{python[1]}"
        )

    @model_validator(mode="after")
    def check_replica_id(self) -> Self:
        """Require a number below group_size, counted from 0."""
        if self.replica_id is not None and self.replica_id >= self.group_size:
            message = f"replica_id {self.replica_id} is not below group_size {self.group_size}"
            raise conflict_error(
                message, "replica_id", "group_size", hint=f"use 0 to {self.group_size - 1}"
            )
        return self

    @model_validator(mode="after")
    def check_waiting_times(self) -> Self:
        """Require groups to wait for the others until these count as lost."""
        for name in ("join_timeout_ms", "heartbeat_timeout_ms"):
            if getattr(self, name) >= self.quorum_timeout_ms:
                message = (
                    f"{name} is {getattr(self, name)}, but the groups wait only "
                    f"quorum_timeout_ms {self.quorum_timeout_ms}"
                )
                raise conflict_error(
                    message, name, "quorum_timeout_ms", hint="set quorum_timeout_ms above it"
                )
        return self

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        """Require no more groups for a step than there are."""
        if self.min_replica_size > self.group_size:
            message = (
                f"min_replica_size is {self.min_replica_size}, but group_size is {self.group_size}"
            )
            raise conflict_error(
                message, "min_replica_size", "group_size", hint="set group_size to as many or more"
            )
        return self

    @model_validator(mode="after")
    def check_fragments(self) -> Self:
        """Require syncs of the fragments at equal distances, none of which overlap."""
        listed = self.module_fqns_per_model_fragment
        if self.semi_sync_method != "diloco":
            return self
        if listed is not None and not listed:
            raise conflict_error(
                "module_fqns_per_model_fragment lists no fragment",
                "module_fqns_per_model_fragment",
                hint="remove it, or list the modules of each fragment",
            )
        count_field = "num_fragments" if listed is None else "module_fqns_per_model_fragment"
        if self.sync_steps % self.fragment_count:
            message = (
                f"{self.fragment_count} fragments cannot be synced evenly within sync_steps "
                f"{self.sync_steps}"
            )
            hint = f"use another number, or set sync_steps to a multiple of {self.fragment_count}"
            raise conflict_error(message, count_field, "sync_steps", hint=hint)
        if self.fragment_sync_delay >= self.sync_interval:
            message = (
                f"fragment_sync_delay is {self.fragment_sync_delay}, but the next sync begins "
                f"after {self.sync_interval}: sync_steps / fragments"
            )
            raise conflict_error(
                message,
                "fragment_sync_delay",
                "sync_steps",
                count_field,
                hint=f"use at most {self.sync_interval - 1}",
            )
        return self

    @model_validator(mode="after")
    def check_outer_optimizer(self) -> Self:
        """Require a momentum where it is Nesterov's."""
        if self.semi_sync_method == "diloco" and self.outer_nesterov and not self.outer_momentum:
            raise conflict_error(
                "outer_nesterov needs a momentum, but outer_momentum is 0",
                "outer_momentum",
                "outer_nesterov",
                hint="raise outer_momentum, or set outer_nesterov: false",
            )
        return self
