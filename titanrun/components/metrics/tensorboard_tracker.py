"""TensorBoard event files as a tracker."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TensorBoardConfig
from titanrun.components.metrics.run_info import RunInfo
from titanrun.components.metrics.tracker_service import import_tracker_package


class TensorBoardTracker:
    """Tracker that writes every metric as a scalar curve into `<run dir>/<folder>`.

    The resolved recipe and its hash are written as texts.

    Raises:
        ProblemsFound: A problem `usage` if the package is missing.
    """

    def __init__(self, config: TensorBoardConfig, *, run_dir: Path, run_info: RunInfo) -> None:
        self.folder = run_dir / config.folder
        self.run_info = run_info
        # torch's writer, which imports the package tensorboard
        self._writer_class = import_tracker_package(
            "torch.utils.tensorboard", extra="tensorboard"
        ).SummaryWriter
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add one point to each curve."""
        if self._writer is None:
            self._writer = self._open_writer(step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_histogram(self, step: int, name: str, counts: Sequence[int]) -> None:
        """Add the histogram of one step."""
        if self._writer is None:
            self._writer = self._open_writer(step)
        self._writer.add_histogram_raw(
            name,
            min=0,
            max=len(counts),
            num=sum(counts),
            sum=sum(number * count for number, count in enumerate(counts)),
            sum_squares=sum(number**2 * count for number, count in enumerate(counts)),
            bucket_limits=[number + 1.0 for number in range(len(counts))],
            bucket_counts=list(counts),
            global_step=step,
        )

    def close(self) -> None:
        """Write queued points."""
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self, step: int) -> Any:
        # a resumed run may log steps that an earlier process has logged: the old points from here
        # on are hidden
        writer = self._writer_class(str(self.folder), purge_step=step)
        # indented text is shown verbatim
        writer.add_text(
            "recipe",
            "".join(f"    {line}\n" for line in self.run_info.resolved_yaml.splitlines()),
            step,
        )
        writer.add_text("recipe_hash", self.run_info.recipe_hash, step)
        return writer
