"""What the replica groups of a run did, from the file that each of them writes."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from titanrun.recipe.rundir.run_files import RUN_JSON, read_json_or_empty, write_indented_json
from titanrun.runs.run_summary import parse_json_object

EVENTS = ("joined", "healed", "retried", "failed")
# what changes who takes part, and is recorded in run.json
CHANGES = ("joined", "left", "healed")
CHANGE_KEYS = ("step", "event", "group", "groups")
TRAINED = ("committed", "trained")
MEMBER = re.compile(r"titanrun_(\d+)")
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


def list_changes(groups: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return which groups joined, left or took over a state, in order of time.

    Every group that stays reports one that has left; it is listed once.
    """
    found = sorted(
        (
            {**event, "group": number}
            for number, events in groups.items()
            for event in events
            if event.get("event") in CHANGES
        ),
        key=lambda event: float(event.get("time", 0)),
    )
    changes, gone = [], set()
    for event in found:
        lost = [name for name in event.get("left", ()) if name not in gone]
        gone.update(lost)
        numbers = [parse_group(name) for name in lost] if "left" in event else [event["group"]]
        changes += [{**event, "group": number} for number in numbers if number is not None]
    return [{key: event.get(key) for key in CHANGE_KEYS} for event in changes]


def parse_group(member: str) -> int | None:
    """Return the number of a group from the id of one of its starts, `titanrun_GROUP:ID`."""
    found = MEMBER.match(member)
    return None if found is None else int(found[1])


def record_changes(folder: Path) -> None:
    """Write to run.json which groups joined, left or took over a state since the run began."""
    record = read_json_or_empty(folder / RUN_JSON)
    changes = list_changes(load_group_events(folder))
    if record and record.get("groups", []) != changes:
        write_indented_json(folder / RUN_JSON, {**record, "groups": changes})


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
