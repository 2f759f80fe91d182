"""The problems that a run met: what its ranks wrote into their logs as a warning or an error."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

LOGS = "logs"
LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (?P<level>WARNING|ERROR|CRITICAL) (?P<text>.*)"
)
# numbers differ from one occurrence to the next
NUMBERS = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Met:
    """A problem: when it was first said, how badly, by which log, its words, and how often the like of it was said."""

    time: str
    level: str
    log: str
    text: str
    count: int = 1


def problems_met(run: Path) -> list[Met]:
    """What went wrong in a run, by time; lines that differ in numbers alone are one."""
    found: dict[tuple[str, str], Met] = {}
    for met in sorted(
        (met for log in sorted((run / LOGS).glob("rank-*.log")) for met in lines_of(log)),
        key=lambda met: met.time,
    ):
        kind = (met.log, NUMBERS.sub("0", met.text))
        before = found.get(kind)
        found[kind] = met if before is None else replace(before, count=before.count + 1)
    return list(found.values())


def lines_of(log: Path) -> Iterator[Met]:
    """The warnings and errors of one log; none of one that cannot be read."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for found in LINE.finditer(text):
        yield Met(found["time"], found["level"].lower(), log.stem, found["text"])
