"""The fleet section: processes that generate while the trainer trains."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, performance, section
from titanrun.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Word

WITH_PROCESSES = ReadWhen(
    rule="fleet-settings-need-processes",
    switch="rl.fleet.processes",
    state="is 0",
    hint="set rl.fleet.processes, or remove it",
    not_values=(0,),
)
WITH_RAY = (
    WITH_PROCESSES,
    ReadWhen(
        rule="ray-settings-need-ray",
        switch="rl.fleet.carrier",
        state="is local",
        hint="set rl.fleet.carrier: ray, or remove it",
        values=("ray",),
    ),
)
RESOURCE = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*=[0-9]+(\.[0-9]+)?")


def validate_resource(text: str) -> str:
    """Return a resource of Ray and its amount, such as `GPU=1`."""
    if RESOURCE.fullmatch(text) is None or not parse_resource(text)[1]:
        context = {"help": "write it as GPU=1"}
        raise PydanticCustomError("a_resource_and_its_amount", "is not an amount", context)
    return text


def parse_resource(text: str) -> tuple[str, float]:
    """Return the name of a resource and its amount."""
    name, _, amount = text.partition("=")
    return name, float(amount)


Resource: TypeAlias = Annotated[str, AfterValidator(validate_resource)]


class RouterConfig(Config):
    """Choice of the process that gets a group of conversations."""

    name: Literal["least_loaded", "round_robin"] = performance(
        "least_loaded", read_when=WITH_PROCESSES
    )
    """least_loaded: the process with the fewest conversations; round_robin: each in turn.

    A process that has as many as it may have, or that has ended, is passed over."""
    sticky: bool = performance(True, read_when=WITH_PROCESSES)
    """Whether a group stays with its process for all turns. If false, each turn is routed anew."""


class FleetConfig(Config):
    """Generation in processes of its own, at the same time as training."""

    processes: NonNegativeInt = performance(0, unit="processes")
    """Processes that generate completions, step environments and score rewards.

    Each has a generator, and environment and reward programs, of its own. 0: the training processes
    do all of it themselves, between two updates."""
    carrier: Literal["local", "ray"] = performance("local", read_when=WITH_PROCESSES)
    """What starts the processes.

    local: the first rank, on its machine; ray: actors of Ray, also on other machines, where
    titanrun and the files that the recipe names must be."""
    address: Word | None = performance(None, examples=["auto", "10.0.0.5:6379"], read_when=WITH_RAY)
    """Cluster of Ray that the first rank joins: `auto`, or host and port of its head.

    Null: a Ray on this machine alone, which ends with the run."""
    resources: tuple[Resource, ...] = performance(
        (), examples=[["GPU=1", "generator=1"]], read_when=WITH_RAY
    )
    """Resources of Ray that each process takes, with their amounts.

    They place it: Ray calls accelerators `GPU` and processors `CPU`."""
    threads: PositiveInt = performance(1, unit="threads", read_when=WITH_PROCESSES)
    """CPU threads of each process."""
    router: RouterConfig = section(RouterConfig)
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True, read_when=WITH_PROCESSES)
    """Restarts of each process that ended. Its conversations start again."""
    min_generators: PositiveInt = bookkeeping(
        1, unit="processes", resume=True, read_when=WITH_PROCESSES
    )
    """Processes that must run for training to go on. With fewer it waits for their restarts."""
    wait_seconds: PositiveFloat = bookkeeping(
        600.0, unit="seconds", resume=True, read_when=WITH_PROCESSES
    )
    """Longest wait for min_generators, after which the run ends."""
    timeout_seconds: PositiveFloat = bookkeeping(
        600.0, unit="seconds", resume=True, read_when=WITH_PROCESSES
    )
    """Longest duration of a turn of a process's conversations, after which it is restarted."""

    @property
    def extra(self) -> str | None:
        """Extra of titanrun that it needs, None for none."""
        return "ray" if self.processes and self.carrier == "ray" else None
