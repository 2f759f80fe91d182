"""Runs of a workspace, read from the files of their folders."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_files import METRICS, RUN_JSON, get_starts, read_json_or_empty
from titanrun.recipe.rundir.stage_runs import list_stage_ids
from titanrun.runs.metric_series import downsample_series, load_metric_series
from titanrun.runs.run_filters import SORT_KEYS, parse_run_filter, sort_runs
from titanrun.runs.run_index import Stamp, load_stamped_summaries
from titanrun.runs.run_state import ACTIVE_STATES, HostInfo, get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary, run_summary_to_dict
from titanrun.ui.folder_walk import confine
from titanrun.ui.refusal import Refusal

SPARK_POINTS = 40
FRESH_SECONDS = 0.5
MAX_SPARKS = 2000
MAX_PAGE = 200
# of the summary, what only identifies the machine
PRIVATE_FIELDS = ("run", "host", "commit", "dirty")


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs to list, in which order.

    Args:
        text: Part of the name or of the folder.
        states: Accepted states; none accepts all.
        tags: Tags that a run must have.
        conditions: Conditions such as `loss<3.2`.
        sort_key: What to sort by.
        is_reversed: Whether to sort descending.
        start, limit: Which part of the list.
    """

    text: str = ""
    states: Sequence[str] = ()
    tags: Sequence[str] = ()
    conditions: Sequence[str] = ()
    sort_key: str = "started"
    is_reversed: bool = True
    start: int = 0
    limit: int = 50


@dataclass(slots=True)
class RunCatalog:
    """All runs below a folder. What is known of a run is kept as long as its files are the same.

    Several pages ask at the same time: what was found a moment ago is not looked for
    again.
    """

    folder: Path
    known: dict[str, tuple[Stamp, RunSummary]] = field(default_factory=dict)
    pairs: list[tuple[RunSummary, str]] = field(default_factory=list)
    found_at: float = -math.inf
    scan_seconds: float = 0.0
    lock: Lock = field(default_factory=Lock)
    sparks: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    parents: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def load_pairs(self) -> list[tuple[RunSummary, str]]:
        """Return every run with its current state."""
        if not self.folder.is_dir():
            return []
        with self.lock:
            begun_at = time.monotonic()
            if begun_at - self.found_at > FRESH_SECONDS:
                here = get_host_info()
                self.known = load_stamped_summaries(self.folder, self.known)
                entries = (entry for _, entry in self.known.values())
                self.pairs = [(entry, get_run_state(entry, here)) for entry in entries]
                self.found_at = time.monotonic()
                self.scan_seconds = self.found_at - begun_at
            return self.pairs

    def forget(self) -> None:
        """Look at all runs again for the next list: the page itself has changed some."""
        self.found_at = -math.inf

    def list_runs(self, query: RunQuery) -> dict[str, Any]:
        """Return a part of the runs that satisfy a query, and how many runs there are.

        Raises:
            ProblemsFound: A condition cannot be read.
            Refusal: There is no such sort key.
        """
        if query.sort_key not in SORT_KEYS:
            raise Refusal(400, "usage", f"runs are not sorted by '{query.sort_key}'")
        conditions = [parse_run_filter(text) for text in query.conditions]
        every = self.load_pairs()
        kept = [
            (entry, state)
            for entry, state in every
            if (not query.states or state in query.states)
            and set(query.tags) <= set(entry.tags)
            and (query.text in self.to_id(entry) or query.text in (entry.name or ""))
            and all(wanted.holds(entry) for wanted in conditions)
        ]
        ordered = sort_runs(kept, query.sort_key, is_reversed=query.is_reversed)
        page = ordered[query.start : query.start + min(query.limit, MAX_PAGE)]
        return {
            "runs": [self.describe_entry(entry, state) for entry, state in page],
            "matching": len(kept),
            "total": len(every),
            "active": sum(state in ACTIVE_STATES for _, state in every),
            "tags": sorted({tag for entry, _ in every for tag in entry.tags}),
        }

    def to_id(self, entry: RunSummary) -> str:
        """Return the id of a run: its path below the folder."""
        # a Path per run would take a third of the time of a list
        return entry.run.removeprefix(f"{self.folder}/")

    def describe_entry(self, entry: RunSummary, state: str) -> dict[str, Any]:
        """Return the summary of a run with its loss curve in few points."""
        data = run_summary_to_dict(entry, state)
        kept = {name: value for name, value in data.items() if name not in PRIVATE_FIELDS}
        return {**kept, "id": self.to_id(entry), "spark": self.load_spark(Path(entry.run))}

    def load_spark(self, run: Path) -> list[float]:
        """Return the loss of a run in few points, empty if none was logged."""
        path = run / METRICS
        try:
            about = path.stat()
        except OSError:
            return []
        key = (str(path), about.st_mtime_ns, about.st_size)
        if key not in self.sparks:
            found: list[float] = []
            with suppress(ProblemsFound):
                series = downsample_series(load_metric_series(path, "loss", "step"), SPARK_POINTS)
                found = list(series.y)
            while len(self.sparks) >= MAX_SPARKS:
                self.sparks.pop(next(iter(self.sparks)))
            self.sparks[key] = found
        return self.sparks[key]

    def find(self, run_id: str) -> Path:
        """Return the folder of a run.

        Raises:
            Refusal: There is no such run below the folder.
        """
        if not self.folder.is_dir():
            raise Refusal(404, "run", f"there is no run '{run_id}'")
        folder = self.folder.joinpath(*confine(self.folder, run_id))
        if not (folder / RUN_JSON).is_file():
            raise Refusal(404, "run", f"there is no run '{run_id}'")
        return folder

    def find_checkpoint(self, run_id: str, step: object) -> Path:
        """Return the folder of a checkpoint, or of the run if no step is given.

        Raises:
            Refusal: There is no such run or checkpoint.
        """
        folder = self.find(run_id)
        if step is None:
            return folder
        if type(step) is not int or step < 0:
            raise Refusal(400, "usage", "a step is a whole number")
        checkpoint = folder / "checkpoint" / f"step-{step}"
        if not checkpoint.is_dir():
            raise Refusal(404, "checkpoint", "the run has no such checkpoint")
        return checkpoint

    def load_entry(self, run_id: str, here: HostInfo | None = None) -> tuple[RunSummary, str]:
        """Return the summary and the state of one run. Raise Refusal if it does not exist."""
        entry = load_run_summary(self.find(run_id))
        return entry, get_run_state(entry, here or get_host_info())

    def load_progress(self, run_id: str) -> tuple[RunSummary, str]:
        """Return what `load_entry` does, without losses and speed: cheap also for a long run."""
        entry = load_run_summary(self.find(run_id), needs_metrics=False)
        return entry, get_run_state(entry, get_host_info())

    def find_relatives(self, run: Path) -> dict[str, Any]:
        """Return the run that a run began from, those that began from it, and its stages."""
        own = self.load_parent(run)
        children = []
        for path in self.iter_folders():
            parent = self.load_parent(path)
            if parent is not None and Path(parent).is_relative_to(run) and path != run:
                children.append(str(path.relative_to(self.folder)))
        stages = [
            {
                "name": name,
                "id": str(run.with_name(name).relative_to(self.folder))
                if (run.with_name(name) / RUN_JSON).is_file()
                else None,
            }
            for name in list_stage_ids(run)
        ]
        began = self.describe_parent(own, run)
        return {"parent": began, "children": children, "stages": stages}

    def iter_folders(self) -> list[Path]:
        """Return the folders of all runs."""
        return [Path(entry.run) for entry, _ in self.load_pairs()]

    def load_parent(self, run: Path) -> str | None:
        """Return the checkpoint that a run began from, as an absolute path, or None."""
        try:
            key = (str(run), (run / RUN_JSON).stat().st_mtime_ns)
        except OSError:
            return None
        if key not in self.parents:
            parent = read_json_or_empty(run / RUN_JSON).get("parent")
            written = parent.get("checkpoint") if isinstance(parent, Mapping) else None
            found = None if written is None else str((self.folder.parent / str(written)).resolve())
            self.parents[key] = found
        return self.parents[key]

    def describe_parent(self, checkpoint: str | None, run: Path) -> dict[str, Any] | None:
        """Return the parent of a run; one that is elsewhere has no id."""
        if checkpoint is None:
            return None
        recorded = read_json_or_empty(run / RUN_JSON).get("parent") or {}
        inside = next(
            (
                str(folder.relative_to(self.folder))
                for folder in Path(checkpoint).parents
                if folder.is_relative_to(self.folder) and (folder / RUN_JSON).is_file()
            ),
            None,
        )
        return {"id": inside, "step": recorded.get("step"), "name": Path(checkpoint).name}


def load_starts(run: Path) -> list[dict[str, Any]]:
    """Return the starts of a run: time, command and changes."""
    return [
        {
            "time": start.get("time"),
            "argv": start.get("argv") or [],
            "changes": start.get("changes") or [],
        }
        for start in get_starts(read_json_or_empty(run / RUN_JSON))
    ]
