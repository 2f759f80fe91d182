"""A run that stops and goes on, told to a tracker: `python log_twice.py TRACKER CONFIG` does so in
the working directory."""

import sys
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import MlflowConfig, TrackioConfig, WandbConfig
from titanrun.components.metrics.mlflow_tracker import MlflowTracker
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.trackio_tracker import TrackioTracker
from titanrun.components.metrics.wandb_tracker import WandbTracker

RESOLVED = "name: first\nmodel:\n  dim: 32\n"
TOLD = RunInfo(
    name="first",
    resolved_yaml=RESOLVED,
    recipe_hash="ab" * 32,
    settings={"model": {"dim": 32, "name": "llama3"}, "converters": ["a", "b"]},
)
REMOTE = {
    "wandb": (WandbTracker, WandbConfig),
    "mlflow": (MlflowTracker, MlflowConfig),
    "trackio": (TrackioTracker, TrackioConfig),
}


def log_twice(tracker: Any, folder: Path, config: Any, state: str = "finished") -> None:
    """Steps 1 to 4, then from step 3 on again, by two trackers one after the other."""
    for steps, loss in (((1, 2, 3, 4), 1.0), ((3, 4, 5), 2.0)):
        receiver = tracker(config, run_dir=folder, run_info=TOLD)
        for step in steps:
            receiver.log(step, {"loss": loss, "validation/loss": float("nan")})
        if hasattr(receiver, "log_histogram"):
            receiver.log_histogram(steps[-1], "experts", [4, 0, 7])
        if hasattr(receiver, "set_end_state"):
            receiver.set_end_state(state)
        receiver.close()


if __name__ == "__main__":
    built, settings = REMOTE[sys.argv[1]]
    log_twice(built, Path.cwd(), settings.model_validate_json(sys.argv[2]), sys.argv[3])
