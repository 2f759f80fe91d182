"""The fleet section: processes that generate while the trainer trains."""

from typing import Literal

from titanrun.config.base import Config
from titanrun.config.fields import ReadWhen, bookkeeping, performance, section
from titanrun.config.types import NonNegativeInt, PositiveFloat, PositiveInt

WITH_PROCESSES = ReadWhen(
    rule="fleet-settings-need-processes",
    switch="rl.fleet.processes",
    state="is 0",
    hint="set rl.fleet.processes, or remove it",
    not_values=(0,),
)


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
    threads: PositiveInt = performance(1, unit="threads", read_when=WITH_PROCESSES)
    """CPU threads of each process."""
    router: RouterConfig = section(RouterConfig)
    max_restarts: NonNegativeInt = bookkeeping(3, resume=True, read_when=WITH_PROCESSES)
    """Restarts of each process that ended. Its conversations start again."""
    timeout_seconds: PositiveFloat = bookkeeping(
        600.0, unit="seconds", resume=True, read_when=WITH_PROCESSES
    )
    """Longest duration of a turn of a process's conversations, after which it is restarted."""
