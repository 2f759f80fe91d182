"""Validations of a run so far: the best one, how long the loss has risen, and their table."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from titanrun.components.metrics.spec.metric_format import (
    find_dataset_losses,
    format_decimals,
)

# rises in a row after which more steps rarely help
RISES_TO_TELL = 3
HEADER = f"{'step':>8}  {'loss':>9}  {'held out':>9}  {'accuracy':>9}  best"
LOSS, ACCURACY = "validation/loss", "validation/accuracy"


@dataclass(slots=True)
class HeldOutHistory:
    """Metrics of the steps that were validated, oldest first.

    Args:
        rows: Steps with their metrics, such as those of a resumed run.
    """

    rows: dict[int, Mapping[str, float]] = field(default_factory=dict)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step if it was validated.

        After a rollback they replace those of later steps.
        """
        if LOSS in values:
            self.rows = {other: row for other, row in self.rows.items() if other < step}
            self.rows[step] = values

    def find_best_step(self) -> int | None:
        """Return the first step with the lowest held-out loss, None without a loss.

        NaN is no loss: it is neither below nor above any number.
        """
        losses = {step: row[LOSS] for step, row in self.rows.items() if not math.isnan(row[LOSS])}
        return min(losses, key=losses.__getitem__, default=None)

    def has_just_risen(self) -> bool:
        """Return whether the last losses have risen as often as it takes to say so, just now."""
        last = [row[LOSS] for row in self.rows.values()][-RISES_TO_TELL - 2 :]
        rises = [later > earlier for earlier, later in pairwise(last)]
        recent, before = rises[-RISES_TO_TELL:], rises[:-RISES_TO_TELL]
        return len(recent) == RISES_TO_TELL and all(recent) and not any(before)

    def format_rise(self) -> str:
        """Format where the losses began to rise, and where they were lowest."""
        begin = list(self.rows)[-RISES_TO_TELL - 1]
        best = self.find_best_step()
        return (
            f"held-out loss rises since step {begin}, it was lowest at step {best} "
            "(checkpoint.keep_best: 1 keeps the best saved one)"
        )

    def format_best(self) -> str:
        """Format the best of several losses, such as `best held-out loss: 1.329 at step 300`.

        Return an empty text for fewer.
        """
        best = self.find_best_step()
        if best is None or len(self.rows) < 2:
            return ""
        return f"best held-out loss: {format_decimals(self.rows[best][LOSS], 5)} at step {best}"

    def format_table(self, max_rows: int) -> list[str]:
        """Return the lines of a table with the best one marked, none before the second validation.

        Of more than `max_rows` validations, return the last ones, and the best one.
        """
        if len(self.rows) < 2:
            return []
        best = self.find_best_step()
        last = list(self.rows)[-max_rows:]
        shown = last if best is None or best in last else [best, *last[1:]]
        further = find_dataset_losses(
            dict.fromkeys(name for row in self.rows.values() for name in row)
        )
        header = HEADER + "".join(f"  {dataset:>9}" for dataset in further.values())
        rows = (self._format_row(step, step == best, further) for step in shown if step)
        return [header, *rows]

    def _format_row(self, step: int, is_best: bool, further: Mapping[str, str]) -> str:
        row = self.rows[step]
        loss = format_decimals(row["loss"], 4) if "loss" in row else ""
        held_out = format_decimals(row[LOSS], 4)
        accuracy = f"{row[ACCURACY]:.1%}" if ACCURACY in row else ""
        line = f"{step:>8}  {loss:>9}  {held_out:>9}  {accuracy:>9}  {'*' if is_best else '':4}"
        for name, dataset in further.items():
            number = format_decimals(row[name], 4) if name in row else ""
            line += f"  {number:>{max(9, len(dataset))}}"
        return line.rstrip()


def load_held_out_history(
    metrics: Iterable[Mapping[str, float]], *, last_step: int
) -> HeldOutHistory:
    """Return the validations of a run up to a step, from the lines of its metrics."""
    history = HeldOutHistory()
    for line in metrics:
        if line["step"] <= last_step:
            history.add(int(line["step"]), line)
    return history
