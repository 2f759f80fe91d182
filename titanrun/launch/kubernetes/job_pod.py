"""Refusal to train a run of `launch: kubernetes` outside the pods of its Job."""

from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.launch.config import LaunchConfig


def start_pod(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Raise a problem: the pods of a Job train with `launch: local`."""
    raise problem_error(
        "usage",
        "launch: kubernetes trains in the pods of a Job, which titanrun launch submits",
        path=("launch",),
        hint="use titanrun launch, or launch=local to train here",
    )
