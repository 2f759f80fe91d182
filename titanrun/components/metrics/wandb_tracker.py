"""Weights & Biases as a tracker."""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import WandbConfig
from titanrun.components.metrics.metric_logger import EndState
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.tracker_service import get_or_create_run_id, import_tracker_package

log = logging.getLogger(__name__)

STEP = "step"
# any code but 0 is a failure there; 75 tells that the run is to be started again
EXIT_CODES: dict[EndState, int] = {"finished": 0, "preempted": 75, "failed": 1}


class WandbTracker:
    """Tracker that sends every metric to a run of Weights & Biases.

    The config of that run is the resolved recipe and its hash. The library gets the metrics and the
    recipe only: not the console, the code, the git state, the arguments or the machine's load. A
    resumed run continues the same run there. Steps that it logs again are points at the same
    `step`.

    Raises:
        ProblemsFound: A problem `usage` if the package is missing.
    """

    def __init__(self, config: WandbConfig, *, run_dir: Path, run_info: RunInfo) -> None:
        self.config = config
        self.folder = run_dir / config.folder
        self.run_info = run_info
        self._wandb = import_tracker_package("wandb", extra="wandb")
        self._run: Any = None
        self._state: EndState = "finished"

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._run is None:
            self._run = self._start_run()
        # as a metric: W&B's own counter refuses to go back, which a resumed run does
        self._run.log({STEP: step, **values})

    def log_histogram(self, step: int, name: str, counts: Sequence[int]) -> None:
        """Add the histogram of one step."""
        if self._run is None:
            self._run = self._start_run()
        bins = (list(counts), list(range(len(counts) + 1)))
        self._run.log({STEP: step, name: self._wandb.Histogram(np_histogram=bins)})

    def set_end_state(self, state: EndState) -> None:
        """Set the final state of the W&B run: finished with exit code 0, else failed."""
        self._state = state

    def close(self) -> None:
        """Send or write queued points."""
        if self._run is not None:
            self._run.finish(exit_code=EXIT_CODES[self._state])

    def _start_run(self) -> Any:
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
            name=self.run_info.name,
            id=get_or_create_run_id(self.folder, lambda: secrets.token_hex(4)),
            # offline nothing can be resumed, and W&B warns about it: `wandb sync --append` joins
            # the parts
            resume="allow" if config.mode == "online" else None,
            config={**self.run_info.settings, "recipe_hash": self.run_info.recipe_hash},
            settings=self._build_settings(),
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        if config.mode == "online":
            log.info("Weights & Biases: %s", run.url)
        return run

    def _build_settings(self) -> Any:
        """Return settings that send only given data and keep the console quiet."""
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
