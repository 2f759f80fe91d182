"""Filters and order of listed runs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from titanrun.config.problems import problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.runs.run_summary import RunSummary

NUMERIC_FIELDS = ("step", "steps", "loss", "grad_norm", "tps", "validation", "seconds", "starts")
SORT_KEYS = ("run", "name", "state", "started", *NUMERIC_FIELDS)
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
}
FILTER_PATTERN = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Condition such as `loss<3.2` on a number of a run summary.

    Unknown values satisfy no condition.
    """

    name: str
    operator: str
    number: float

    def holds(self, summary: RunSummary) -> bool:
        """Return whether a run summary satisfies the condition."""
        value = getattr(summary, self.name)
        return value is not None and OPERATORS[self.operator](value, self.number)


def parse_run_filter(text: str) -> RunFilter:
    """Parse a condition as typed. Raise ProblemsFound if it is invalid."""
    found = FILTER_PATTERN.fullmatch(text)
    if not found:
        raise problem_error(
            "usage",
            f"'{text}' is not a condition",
            hint="write a name, one of <= >= == != < >, and a number: 'loss<3.2'",
        )
    if found[1] not in NUMERIC_FIELDS:
        meant = find_closest(found[1], NUMERIC_FIELDS)
        hint = (
            f"did you mean '{meant}'?"
            if meant
            else f"known fields: {format_word_list(NUMERIC_FIELDS, conjunction='and')}"
        )
        raise problem_error("usage", f"runs have no numeric field '{found[1]}'", hint=hint)
    try:
        return RunFilter(found[1], found[2], float(found[3]))
    except ValueError:
        raise problem_error(
            "usage", f"'{found[3]}' in '{text}' is not a number", hint="write it as 3.2 or 1e-3"
        ) from None


def sort_runs(
    summaries: Sequence[tuple[RunSummary, str]], sort_key: str, *, is_reversed: bool
) -> list[tuple[RunSummary, str]]:
    """Sort run summaries with their states by one of SORTED_BY, ascending.

    Those without the value come last, also in reverse order.
    """
    keys = [
        state if sort_key == "state" else getattr(entry, sort_key) for entry, state in summaries
    ]
    knowing = [
        pair for pair, key in zip(summaries, keys, strict=True) if key is not None and key == key
    ]
    lacking = [pair for pair, key in zip(summaries, keys, strict=True) if key is None or key != key]
    return (
        sorted(
            knowing,
            key=lambda pair: pair[1] if sort_key == "state" else getattr(pair[0], sort_key),
            reverse=is_reversed,
        )
        + lacking
    )
