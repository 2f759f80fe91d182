"""What the replica groups of a run did, from the file that each of them writes."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from titanrun.runs.run_summary import parse_json_object

EVENTS = ("joined", "healed", "retried", "failed")
TRAINED = ("committed", "trained")
GROUP_FILE = re.compile(r"group-(\d+)\.jsonl")


def load_group_events(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the events of each group of a run, none if it has no groups.

    Torn lines are ignored.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    for path in (folder / "logs").glob("group-*.jsonl"):
        name = GROUP_FILE.fullmatch(path.name)
        if name is not None:
            lines = path.read_bytes().splitlines()
            found[int(name[1])] = [event for line in lines if (event := parse_json_object(line))]
    return dict(sorted(found.items()))


def describe_groups(groups: dict[int, list[dict[str, Any]]]) -> str:
    """Return how often each group joined, took over a state, and trained without result."""
    texts = []
    for number, events in groups.items():
        counts = Counter(str(event.get("event")) for event in events)
        said = ", ".join(f"{name} {counts[name]}" for name in EVENTS if counts[name])
        texts.append(f"group {number}: {said or 'not joined'}")
    return "; ".join(texts)


def find_unlogged_steps(
    groups: dict[int, list[dict[str, Any]]], logged: Collection[int], log_freq: int
) -> list[int]:
    """Return the steps whose metrics were lost with the group that was to write them.

    Args:
        groups: events of each group.
        logged: steps that have metrics.
        log_freq: steps between two that are logged.
    """
    trained = {
        step
        for events in groups.values()
        for event in events
        if event.get("event") in TRAINED and isinstance(step := event.get("step"), int)
    }
    last = max(logged, default=0)
    return sorted(step for step in trained - set(logged) if step < last and step % log_freq == 0)


def format_steps(steps: Sequence[int]) -> str:
    """Return steps in ascending order as text, those that follow each other as `first-last`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
