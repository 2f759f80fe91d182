"""Weights & Biases as a tracker."""

import logging
import secrets
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import WandbConfig
from titanrun.components.metrics.log import EndState
from titanrun.components.metrics.services import kept_id, package
from titanrun.components.metrics.tracked import TrackedRun

log = logging.getLogger(__name__)

STEP = "step"
# any but 0 is a failure there; 75 says to those who look that the run is to be started again
EXIT_CODES: dict[EndState, int] = {"finished": 0, "preempted": 75, "failed": 1}


class WandbTracker:
    """Sends every metric to a run of Weights & Biases, whose config is the resolved recipe and its hash.

    The library gets the metrics and the recipe only: not the console, the code, the git state, the arguments or the machine's load.
    A resumed run goes on in the same run there; steps that it logs again are points at the same `step`.

    Raises a problem `usage` where the package is missing.
    """

    def __init__(self, config: WandbConfig, *, run_dir: Path, tracked: TrackedRun) -> None:
        self.config = config
        self.folder = run_dir / config.folder
        self.tracked = tracked
        self._wandb = package("wandb", extra="wandb")
        self._run: Any = None
        self._state: EndState = "finished"

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._run is None:
            self._run = self._begin()
        # as a metric: W&B's own counter refuses to go back, which a resumed run does
        self._run.log({STEP: step, **values})

    def ends_as(self, state: EndState) -> None:
        """The state that the run has there: finished with exit code 0, else failed."""
        self._state = state

    def close(self) -> None:
        """Send, or write, what is still queued."""
        if self._run is not None:
            self._run.finish(exit_code=EXIT_CODES[self._state])

    def _begin(self) -> Any:
        config = self.config
        if config.mode == "online" and not self._wandb.login(prompt=False, verify=False):
            raise PermissionError(
                "no key: set WANDB_API_KEY, call `wandb login`, or set mode: offline"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        run = self._wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            tags=list(config.tags),
            name=self.tracked.name,
            id=kept_id(self.folder, lambda: secrets.token_hex(4)),
            # offline there is nothing to go on with, and W&B warns that it cannot: `wandb sync --append` joins the parts
            resume="allow" if config.mode == "online" else None,
            config={**self.tracked.settings, "recipe_hash": self.tracked.recipe_hash},
            settings=self._settings(),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        if config.mode == "online":
            log.info("Weights & Biases: %s", run.url)
        return run

    def _settings(self) -> Any:
        """Only what is told to it, and no word on the console."""
        return self._wandb.Settings(
            mode=self.config.mode,
            root_dir=str(self.folder),
            silent=True,
            console="off",
            disable_git=True,
            save_code=False,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
