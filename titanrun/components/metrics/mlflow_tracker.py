"""MLflow as a tracker."""

import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import MlflowConfig
from titanrun.components.metrics.metric_logger import EndState
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.tracker_service import get_or_create_run_id, import_tracker_package

# MLflow's limits for parameters in one call, and for the length of a parameter's value
MOST_PARAMETERS = 100
LONGEST_VALUE = 6000
STATES: dict[EndState, str] = {"finished": "FINISHED", "preempted": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Tracker that sends every metric to an MLflow run, on a server or in a local database.

    The resolved recipe is the artifact resolved.yaml, its settings are the parameters, its hash is
    the tag `recipe_hash`. A resumed run continues the same MLflow run, with the recipe and hash of
    its last start; MLflow keeps the parameters of the first one.

    Raises:
        ProblemsFound: A problem `usage` if a package is missing.
    """

    def __init__(self, config: MlflowConfig, *, run_dir: Path, run_info: RunInfo) -> None:
        self.config = config
        self.folder = (run_dir / config.folder).absolute()
        self.run_info = run_info
        self._mlflow = import_tracker_package("mlflow", extra="mlflow")
        self._entities = import_tracker_package("mlflow.entities", extra="mlflow")
        # MLflow's own database needs it, and imports it late
        import_tracker_package("sqlalchemy", extra="mlflow")
        self._client: Any = None
        self._run_id = ""
        self._state: EndState = "finished"

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._client is None:
            self._start_run()
        now_ms = time.time_ns() // 1_000_000
        metrics = [
            self._entities.Metric(name, float(value), now_ms, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def set_end_state(self, state: EndState) -> None:
        """Set the final status of the MLflow run."""
        self._state = state

    def close(self) -> None:
        """Mark the run as ended."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, status=STATES[self._state])

    def _start_run(self) -> None:
        """Open the run, and log the recipe."""
        # MLflow logs to the console how it creates its tables
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        client = self._mlflow.MlflowClient(
            self.config.tracking_uri or f"sqlite:///{self.folder / 'mlflow.db'}"
        )
        self._run_id = get_or_create_run_id(self.folder, lambda: self._create_run(client))
        client.update_run(self._run_id, status="RUNNING")
        client.set_tag(self._run_id, "recipe_hash", self.run_info.recipe_hash)
        client.log_text(self._run_id, self.run_info.resolved_yaml, "resolved.yaml")
        self._client = client

    def _create_run(self, client: Any) -> str:
        run = client.create_run(self._get_experiment_id(client), run_name=self.run_info.name)
        leaves = iter(self.run_info.flatten_settings().items())
        while some := list(islice(leaves, MOST_PARAMETERS)):
            params = [self._entities.Param(name, value[:LONGEST_VALUE]) for name, value in some]
            client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def _get_experiment_id(self, client: Any) -> str:
        """Return the id of the experiment, created if it does not exist.

        The artifacts of a local database are stored next to it.
        """
        found = client.get_experiment_by_name(self.config.experiment)
        if found is not None:
            return str(found.experiment_id)
        place = None if self.config.tracking_uri else (self.folder / "artifacts").as_uri()
        return str(client.create_experiment(self.config.experiment, artifact_location=place))
