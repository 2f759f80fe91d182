"""TensorBoard event files as a tracker."""

from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TensorBoardConfig
from titanrun.components.metrics.services import package
from titanrun.components.metrics.tracked import TrackedRun


class TensorBoardTracker:
    """Writes every metric as a scalar curve into `<run dir>/<folder>`, and the resolved recipe with its hash as texts.

    Raises a problem `usage` where the package is missing.
    """

    def __init__(self, config: TensorBoardConfig, *, run_dir: Path, tracked: TrackedRun) -> None:
        self.folder = run_dir / config.folder
        self.tracked = tracked
        # torch's writer, which imports the package tensorboard
        self._writer_class = package("torch.utils.tensorboard", extra="tensorboard").SummaryWriter
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._writer is None:
            self._writer = self._begin(step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still queued."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self, step: int) -> Any:
        # a resumed run logs steps again that an earlier process may have logged: its points from here on are hidden
        writer = self._writer_class(str(self.folder), purge_step=step)
        # indented, the text is shown as it stands
        writer.add_text(
            "recipe", "".join(f"    {line}\n" for line in self.tracked.resolved.splitlines()), step
        )
        writer.add_text("recipe_hash", self.tracked.recipe_hash, step)
        return writer
