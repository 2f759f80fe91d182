"""metrics.csv: a table of the metrics, for spreadsheets and data frames."""

import csv
import io
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import CsvConfig
from titanrun.components.metrics.tracked import TrackedRun

FILE = "metrics.csv"
STEP, HASH = "step", "recipe_hash"


class CsvTracker:
    """Writes one row a logged step into `<run dir>/<folder>/metrics.csv`; a metric that comes up later is a column at the end.

    A run that goes on takes out the rows of the steps that it logs again.
    """

    def __init__(self, config: CsvConfig, *, run_dir: Path, tracked: TrackedRun) -> None:
        self.path = run_dir / config.folder / FILE
        self.recipe_hash = tracked.recipe_hash
        self._columns: list[str] = []

    def log(self, step: int, values: dict[str, float]) -> None:
        """Append the row of one step."""
        row = {STEP: step, HASH: self.recipe_hash, **values}
        if not self._columns:
            self._begin(step)
        new = [name for name in row if name not in self._columns]
        if new:
            self._write([*self._columns, *new], read_rows(self.path)[1])
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(row)

    def close(self) -> None:
        """Nothing is held open."""

    def _begin(self, step: int) -> None:
        """Keep what an earlier process logged before `step`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns, rows = read_rows(self.path)
        self._write(columns or [STEP, HASH], [row for row in rows if int(row[STEP]) < step])

    def _write(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        """The whole table, in one replacement."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.path)
        self._columns = columns


def read_rows(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and the rows of a table; none where there is no file. A last line that a crash tore is left out."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return list(reader.fieldnames or []), list(reader)
