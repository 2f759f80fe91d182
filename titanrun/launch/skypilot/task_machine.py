"""Refusal to train a run of `launch: skypilot` outside the machines of its task."""

from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.launch.config import LaunchConfig


def start_on_machine(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Raise a problem: the machines of a task train with `launch: local`."""
    raise problem_error(
        "usage",
        "launch: skypilot trains on machines of SkyPilot, which titanrun launch requests",
        path=("launch",),
        hint="use titanrun launch, or launch=local to train here",
    )
