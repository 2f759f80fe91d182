"""MLflow as a tracker."""

import logging
import time
from itertools import islice
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import MlflowConfig
from titanrun.components.metrics.log import EndState
from titanrun.components.metrics.services import kept_id, package
from titanrun.components.metrics.tracked import TrackedRun

# what MLflow takes in one call, and as the value of a parameter
MOST_PARAMETERS = 100
LONGEST_VALUE = 6000
STATES: dict[EndState, str] = {"finished": "FINISHED", "preempted": "KILLED", "failed": "FAILED"}


class MlflowTracker:
    """Sends every metric to a run of MLflow: on a tracking server, or in a database inside the run directory.

    The resolved recipe is the run's artifact resolved.yaml, its settings are the parameters, its hash is the tag `recipe_hash`. A resumed
    run goes on in the same run there, with the recipe and hash of its last start; MLflow keeps the parameters of the first one.

    Raises a problem `usage` where a package is missing.
    """

    def __init__(self, config: MlflowConfig, *, run_dir: Path, tracked: TrackedRun) -> None:
        self.config = config
        self.folder = (run_dir / config.folder).absolute()
        self.tracked = tracked
        self._mlflow = package("mlflow", extra="mlflow")
        self._entities = package("mlflow.entities", extra="mlflow")
        # MLflow's own database needs it, and imports it late
        package("sqlalchemy", extra="mlflow")
        self._client: Any = None
        self._run_id = ""
        self._state: EndState = "finished"

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._client is None:
            self._begin()
        now_ms = time.time_ns() // 1_000_000
        metrics = [
            self._entities.Metric(name, float(value), now_ms, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def ends_as(self, state: EndState) -> None:
        """The status that the run has there."""
        self._state = state

    def close(self) -> None:
        """Mark the run as ended."""
        if self._client is not None:
            self._client.set_terminated(self._run_id, status=STATES[self._state])

    def _begin(self) -> None:
        """Open the run, and tell what is run."""
        # it tells on the console how it makes its tables
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.folder.mkdir(parents=True, exist_ok=True)
        client = self._mlflow.MlflowClient(
            self.config.tracking_uri or f"sqlite:///{self.folder / 'mlflow.db'}"
        )
        self._run_id = kept_id(self.folder, lambda: self._new_run(client))
        client.update_run(self._run_id, status="RUNNING")
        client.set_tag(self._run_id, "recipe_hash", self.tracked.recipe_hash)
        client.log_text(self._run_id, self.tracked.resolved, "resolved.yaml")
        self._client = client

    def _new_run(self, client: Any) -> str:
        run = client.create_run(self._experiment(client), run_name=self.tracked.name)
        leaves = iter(self.tracked.leaves().items())
        while some := list(islice(leaves, MOST_PARAMETERS)):
            params = [self._entities.Param(name, value[:LONGEST_VALUE]) for name, value in some]
            client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def _experiment(self, client: Any) -> str:
        """The id of the experiment, made where it is not there; the artifacts of a database of our own lie beside it."""
        found = client.get_experiment_by_name(self.config.experiment)
        if found is not None:
            return str(found.experiment_id)
        place = None if self.config.tracking_uri else (self.folder / "artifacts").as_uri()
        return str(client.create_experiment(self.config.experiment, artifact_location=place))
