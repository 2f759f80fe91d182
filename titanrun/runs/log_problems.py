"""Problems of a run: the warnings and errors in the logs of its ranks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

LOGS = "logs"
LOG_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (?P<level>WARNING|ERROR|CRITICAL) (?P<text>.*)"
)
# numbers differ between occurrences
NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class LoggedProblem:
    """Logged problem: first time, level, log, text and number of occurrences."""

    time: str
    level: str
    log: str
    text: str
    count: int = 1


def collect_log_problems(run: Path) -> list[LoggedProblem]:
    """Return the problems of a run by time. Lines that differ only in numbers count as one."""
    found: dict[tuple[str, str], LoggedProblem] = {}
    for met in sorted(
        (
            met
            for log in sorted((run / LOGS).glob("rank-*.log"))
            for met in iter_logged_problems(log)
        ),
        key=lambda met: met.time,
    ):
        kind = (met.log, NUMBERS.sub("0", met.text))
        before = found.get(kind)
        found[kind] = met if before is None else replace(before, count=before.count + 1)
    return list(found.values())


def iter_logged_problems(log: Path) -> Iterator[LoggedProblem]:
    """Yield the warnings and errors of one log. An unreadable log has none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for found in LOG_LINE.finditer(text):
        yield LoggedProblem(found["time"], found["level"].lower(), log.stem, found["text"])
