"""Table of a run's validations, with the best one marked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HEADER = f"{'step':>8}  {'loss':>9}  {'held out':>9}  {'accuracy':>9}  best"
LOSS, ACCURACY = "validation/loss", "validation/accuracy"


@dataclass(slots=True)
class HeldOutTable:
    """Validations of a run so far by step, oldest first: training loss, held-out loss, accuracy."""

    rows: dict[int, Mapping[str, float]] = field(default_factory=dict)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step if it was validated.

        After a rollback they replace those of later steps.
        """
        if LOSS in values:
            self.rows = {other: row for other, row in self.rows.items() if other < step}
            self.rows[step] = values

    def find_best_step(self) -> int | None:
        """Return the first step with the lowest held-out loss, None without validations."""
        return min(self.rows, key=lambda step: self.rows[step][LOSS], default=None)

    def format(self, max_rows: int) -> list[str]:
        """Return the lines of the table, none before the second validation.

        Of more than `max_rows` validations, return the last ones, and the best one.
        """
        if len(self.rows) < 2:
            return []
        best = self.find_best_step()
        last = list(self.rows)[-max_rows:]
        shown = last if best in last else [best, *last[1:]]
        return [HEADER, *(self._format_row(step, step == best) for step in shown if step)]

    def _format_row(self, step: int, is_best: bool) -> str:
        row = self.rows[step]
        loss = f"{row['loss']:.4f}" if "loss" in row else ""
        accuracy = f"{row[ACCURACY]:.1%}" if ACCURACY in row else ""
        line = f"{step:>8}  {loss:>9}  {row[LOSS]:>9.4f}  {accuracy:>9}  {'*' if is_best else ''}"
        return line.rstrip()


def load_held_out_table(metrics: Iterable[Mapping[str, float]], *, last_step: int) -> HeldOutTable:
    """Return the validations of a run up to a step, from the lines of its metrics."""
    table = HeldOutTable()
    for line in metrics:
        if line["step"] <= last_step:
            table.add(int(line["step"]), line)
    return table
