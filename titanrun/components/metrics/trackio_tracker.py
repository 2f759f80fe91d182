"""Trackio as a tracker."""

import io
import secrets
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TrackioConfig
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.tracker_service import get_or_create_run_id, import_tracker_package


class TrackioTracker:
    """Tracker that sends every metric to a Trackio run, on this machine or in a Space.

    The config of the Trackio run is the resolved recipe and its hash. Its name is the recipe's name
    with an id by which a resumed run continues it. Steps that are logged again appear twice.
    Trackio does not record how a run ended.

    Raises:
        ProblemsFound: A problem `usage` if the package is missing.
    """

    def __init__(self, config: TrackioConfig, *, run_dir: Path, run_info: RunInfo) -> None:
        self.config = config
        self.folder = run_dir / config.folder
        self.run_info = run_info
        self._trackio = import_tracker_package("trackio", extra="trackio")
        self._run: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._run is None:
            self._run = self._start_run()
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send or write queued points."""
        if self._run is not None:
            # the library prints to stdout, which is for data
            with redirect_stdout(io.StringIO()):
                self._trackio.finish()

    def _start_run(self) -> Any:
        run_id = get_or_create_run_id(self.folder, lambda: secrets.token_hex(4))
        with redirect_stdout(io.StringIO()):
            return self._trackio.init(
                project=self.config.project,
                name=f"{self.run_info.name}-{run_id}",
                group=self.config.group,
                space_id=self.config.space_id,
                config={**self.run_info.settings, "recipe_hash": self.run_info.recipe_hash},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
