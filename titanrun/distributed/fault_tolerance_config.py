"""The fault_tolerance section: replica groups that may fail while the others train on."""

from typing import Self

from pydantic import model_validator

from titanrun.config.base import Config
from titanrun.config.conflict import conflict_error
from titanrun.config.fields import ReadWhen, performance
from titanrun.config.types import PositiveInt

ENABLED = ReadWhen(
    "settings-need-replica-groups",
    ".enable",
    "is false",
    "set fault_tolerance.enable: true, or remove it",
    values=(True,),
)


class FaultToleranceConfig(Config):
    """Replica groups of torchft: each trains a share of every step, and a lost one is replaced."""

    enable: bool = performance(False, resume=True)
    """Whether the run consists of replica groups, each with all weights. A group that fails removes
    no sequence from a step: the step is repeated by the others."""
    group_size: PositiveInt = performance(2, unit="groups", resume=True, read_when=ENABLED)
    """Replica groups. Each has launch.nproc_per_node ranks."""
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
        5000, unit="milliseconds", resume=True, read_when=ENABLED
    )
    """Time without a sign of life after which a group counts as lost."""

    @property
    def extra(self) -> str | None:
        """Extra of titanrun with the package that the groups need, None if there are none."""
        return "torchft" if self.enable else None

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
