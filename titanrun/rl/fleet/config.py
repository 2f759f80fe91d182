"""The fleet section: processes that generate while the trainer trains."""

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, performance, section
from titanrun.config.host_port import parse_tcp_url
from titanrun.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Text, Word

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
        state="is not ray",
        hint="set rl.fleet.carrier: ray, or remove it",
        values=("ray",),
    ),
)
WITH_HTTP = (
    WITH_PROCESSES,
    ReadWhen(
        rule="http-settings-need-http",
        switch="rl.fleet.carrier",
        state="is not http",
        hint="set rl.fleet.carrier: http, or remove it",
        values=("http",),
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


def validate_tcp_url(text: str) -> str:
    """Return the URL of a generator."""
    try:
        parse_tcp_url(text)
    except ValueError:
        context = {"help": "write it as tcp://10.0.0.2:7100"}
        raise PydanticCustomError("tcp_host_and_port", "is not an address", context) from None
    return text


Resource: TypeAlias = Annotated[str, AfterValidator(validate_resource)]
TcpUrl: TypeAlias = Annotated[str, AfterValidator(validate_tcp_url)]


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
    carrier: Literal["local", "ray", "http"] = performance("local", read_when=WITH_PROCESSES)
    """What starts the processes.

    local: the first rank, on its machine; ray: actors of Ray, also on other machines, where
    titanrun and the files that the recipe names must be; http: nothing, titanrun fleet has started
    them, also on other machines, and they wait for the first rank at urls."""
    address: Word | None = performance(None, examples=["auto", "10.0.0.5:6379"], read_when=WITH_RAY)
    """Cluster of Ray that the first rank joins: `auto`, or host and port of its head.

    Null: a Ray on this machine alone, which ends with the run."""
    resources: tuple[Resource, ...] = performance(
        (), examples=[["GPU=1", "generator=1"]], read_when=WITH_RAY
    )
    """Resources of Ray that each process takes, with their amounts.

    They place it: Ray calls accelerators `GPU` and processors `CPU`."""
    urls: tuple[TcpUrl, ...] = performance(
        (), examples=[["tcp://10.0.0.2:7100", "tcp://10.0.0.3:7100"]], read_when=WITH_HTTP
    )
    """Where titanrun fleet listens, one address for each process."""
    secret_file: Text | None = bookkeeping(
        None, resume=True, examples=["fleet.secret"], read_when=WITH_HTTP
    )
    """File with the secret that the trainer and its generators share, which nobody else may read.

    titanrun fleet makes it if it is absent. Null: no secret, on this machine only."""
    threads: PositiveInt = performance(1, unit="threads", read_when=WITH_PROCESSES)
    """CPU threads of each process."""
    router: RouterConfig = section(RouterConfig)
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True, read_when=WITH_PROCESSES)
    """Restarts of each process that ended. Its conversations start again.

    With carrier http: connections that were lost. An attempt to connect is repeated for as long as
    wait_seconds allows."""
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
