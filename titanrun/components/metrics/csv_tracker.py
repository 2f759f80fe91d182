"""metrics.csv: a table of the metrics, for spreadsheets and data frames."""

import csv
import io
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import CsvConfig
from titanrun.components.metrics.run_info import RunInfo

FILE = "metrics.csv"
STEP, HASH = "step", "recipe_hash"


class CsvTracker:
    """Writer of one row per logged step to `<run dir>/<folder>/metrics.csv`.

    A metric that appears later becomes a new last column. A resumed run removes the rows of the
    steps that it logs again.
    """

    def __init__(self, config: CsvConfig, *, run_dir: Path, run_info: RunInfo) -> None:
        self.path = run_dir / config.folder / FILE
        self.recipe_hash = run_info.recipe_hash
        self._columns: list[str] = []

    def log(self, step: int, values: dict[str, float]) -> None:
        """Append the row of one step."""
        row = {STEP: step, HASH: self.recipe_hash, **values}
        if not self._columns:
            self._discard_rows_from(step)
        new = [name for name in row if name not in self._columns]
        if new:
            self._write([*self._columns, *new], read_csv_table(self.path)[1])
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self._columns, lineterminator="\n").writerow(row)

    def close(self) -> None:
        """Do nothing: no resources are open."""

    def _discard_rows_from(self, step: int) -> None:
        """Keep only rows of an earlier process before `step`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns, rows = read_csv_table(self.path)
        self._write(columns or [STEP, HASH], [row for row in rows if int(row[STEP]) < step])

    def _write(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        """Write the whole table, replacing the file atomically."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.path)
        self._columns = columns


def read_csv_table(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and the rows of a table, empty if there is no file.

    A last line that a crash left incomplete is ignored.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return list(reader.fieldnames or []), list(reader)
