"""Trackio as a tracker."""

import io
import secrets
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TrackioConfig
from titanrun.components.metrics.services import kept_id, package
from titanrun.components.metrics.tracked import TrackedRun


class TrackioTracker:
    """Sends every metric to a run of Trackio, whose config is the resolved recipe and its hash: on this machine, or in a Space.

    A run's name there is the recipe's, with an id behind it by which a resumed run goes on; steps that it logs again are there twice.
    Trackio keeps no word on how a run ended.

    Raises a problem `usage` where the package is missing.
    """

    def __init__(self, config: TrackioConfig, *, run_dir: Path, tracked: TrackedRun) -> None:
        self.config = config
        self.folder = run_dir / config.folder
        self.tracked = tracked
        self._trackio = package("trackio", extra="trackio")
        self._run: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._run is None:
            self._run = self._begin()
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send, or write, what is still queued."""
        if self._run is not None:
            # the library tells on stdout, which is for data
            with redirect_stdout(io.StringIO()):
                self._trackio.finish()

    def _begin(self) -> Any:
        id = kept_id(self.folder, lambda: secrets.token_hex(4))
        with redirect_stdout(io.StringIO()):
            return self._trackio.init(
                project=self.config.project,
                name=f"{self.tracked.name}-{id}",
                group=self.config.group,
                space_id=self.config.space_id,
                config={**self.tracked.settings, "recipe_hash": self.tracked.recipe_hash},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
