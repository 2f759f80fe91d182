"""TensorBoard event files as a tracker."""

from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TensorBoardConfig
from titanrun.config.problems import fail


class TensorBoardTracker:
    """Writes every metric as a scalar curve into `<run dir>/<folder>`.

    Raises a problem `usage` where the package is missing.
    """

    def __init__(self, config: TensorBoardConfig, *, run_dir: Path) -> None:
        self.folder = run_dir / config.folder
        self._writer_class = summary_writer_class()
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._writer is None:
            # a resumed run logs steps again that an earlier process may have logged: its points from here on are hidden
            self._writer = self._writer_class(str(self.folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still queued."""
        if self._writer is not None:
            self._writer.close()


def summary_writer_class() -> Any:
    """torch's writer, which imports the package tensorboard."""
    try:
        return import_module("torch.utils.tensorboard").SummaryWriter
    except ModuleNotFoundError as error:
        raise fail(
            "usage",
            f"the tracker tensorboard needs a package that is not installed: {error.name}",
            path=("metrics", "trackers"),
            help='pip install "titanrun[tensorboard]"',
        ) from error
