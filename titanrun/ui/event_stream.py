"""Event stream of a page: changes of runs and files, found by looking at them."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio import to_thread

from titanrun.components.metrics.spec.metrics_file import NON_FINITE
from titanrun.config.json_text import parse_json
from titanrun.recipe.rundir.run_files import METRICS
from titanrun.ui.jobs import JobStarter
from titanrun.ui.refusal import Refusal, encode_nonfinite_numbers
from titanrun.ui.run_catalog import RunCatalog
from titanrun.ui.run_details import LOG_PAGE_BYTES, list_logs, read_log
from titanrun.ui.workspace import Workspace

POLL_SECONDS = 0.25
LIST_SECONDS = 2.0
# asking for the state takes the lock of a run for a moment, which would disturb one that starts
STATE_SECONDS = 1.0
JOBS_SECONDS = 0.5
PING_SECONDS = 15.0
MAX_TOPICS = 16
MAX_ROWS_BYTES = 4 * 1024**2

Event = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Topic:
    """One thing that is followed, with the place up to which the page knows it."""

    cursor: str = ""
    checked_at: float = 0.0
    last: Any = None

    def is_due(self, seconds: float) -> bool:
        """Return whether it was looked at long enough ago, and note the time."""
        now = time.monotonic()
        if now - self.checked_at < seconds:
            return False
        self.checked_at = now
        return True


@dataclass(slots=True)
class EventSource:
    """Events about the topics of one page."""

    catalog: RunCatalog
    workspace: Workspace
    jobs: JobStarter
    topics: dict[str, Topic]
    states: dict[str, Topic] = field(default_factory=dict)

    def collect(self) -> list[Event]:
        """Return what has happened since the last call."""
        found: list[Event] = []
        for name, topic in self.topics.items():
            kind, _, what = name.partition(":")
            with suppress(Refusal, OSError):
                found += self.get_collector(kind)(what, topic)
        return found

    def get_collector(self, kind: str) -> Callable[[str, Topic], list[Event]]:
        """Return what looks at a kind of topic."""
        return {
            "runs": self.collect_list,
            "run": self.collect_run,
            "log": self.collect_log,
            "file": self.collect_file,
            "jobs": self.collect_jobs,
            "chat": self.collect_chat,
        }[kind]

    def collect_list(self, _: str, topic: Topic) -> list[Event]:
        """Return an event if any run has changed."""
        # thousands of runs take a while to look at: at most a part of the time
        if not topic.is_due(max(LIST_SECONDS, 20 * self.catalog.scan_seconds)):
            return []
        state = [
            (entry.run, state, entry.step, entry.tags) for entry, state in self.catalog.load_pairs()
        ]
        digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
        changed, topic.cursor = topic.cursor not in ("", digest), digest
        return [("runs.changed", {})] if changed else []

    def collect_run(self, run_id: str, topic: Topic) -> list[Event]:
        """Return new rows of metrics, and the state if it has changed."""
        folder = self.catalog.find(run_id)
        found = self.collect_metrics(run_id, folder / METRICS, topic)
        state = self.states.setdefault(run_id, Topic())
        if state.is_due(STATE_SECONDS):
            entry, live = self.catalog.load_progress(run_id)
            now = {"state": live, "step": entry.step, "steps": entry.steps}
            if now != state.last:
                found.append(("run.state", {"id": run_id, **now}))
            state.last = now
        return found

    def collect_metrics(self, run_id: str, path: Path, topic: Topic) -> list[Event]:
        """Return the whole lines after the cursor; a file that was replaced is read anew."""
        inode, _, offset = topic.cursor.partition("-")
        try:
            about = path.stat()
        except FileNotFoundError:
            return []
        start = int(offset) if offset.isdigit() else 0
        if topic.cursor and (str(about.st_ino) != inode or about.st_size < start):
            is_new = inode == "0"
            topic.cursor = f"{about.st_ino}-0"
            return [] if is_new else [("run.reset", {"id": run_id})]
        if about.st_size == start:
            topic.cursor = f"{about.st_ino}-{start}"
            return []
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(MAX_ROWS_BYTES)
        whole = data.rfind(b"\n") + 1
        topic.cursor = f"{about.st_ino}-{start + whole}"
        rows = [row for line in data[:whole].splitlines() if (row := parse_row(line))]
        return [("run.metrics", {"id": run_id, "rows": rows})] if rows else []

    def collect_log(self, run_id: str, topic: Topic) -> list[Event]:
        """Return new lines of the log of the main rank."""
        folder = self.catalog.find(run_id)
        logs = list_logs(folder)
        if not logs:
            return []
        start = int(topic.cursor) if topic.cursor.isdigit() else 0
        size = logs[0].stat().st_size
        if size == start:
            return []
        page = read_log(folder, logs[0].stem, None if size - start > LOG_PAGE_BYTES else start)
        if size < start:
            page = read_log(folder, logs[0].stem, 0)
        topic.cursor = str(page["to"])
        return [("run.log", {"id": run_id, **page})] if page["text"] else []

    def collect_file(self, name: str, topic: Topic) -> list[Event]:
        """Return an event if a file has changed."""
        try:
            now = self.workspace.read(name).sha256
        except Refusal as refusal:
            now = "gone" if refusal.status == 404 else topic.cursor
        changed, topic.cursor = now != topic.cursor, now
        return [("file.changed", {"path": name, "sha256": now})] if changed else []

    def collect_jobs(self, _: str, topic: Topic) -> list[Event]:
        """Return an event if a command has begun, waits, or has ended."""
        if not topic.is_due(JOBS_SECONDS):
            return []
        digest = hashlib.sha256(repr(self.jobs.list_jobs()).encode()).hexdigest()[:16]
        changed, topic.cursor = topic.cursor not in ("", digest), digest
        return [("jobs.changed", {})] if changed else []

    def collect_chat(self, name: str, topic: Topic) -> list[Event]:
        """Return what was said in a conversation since the cursor."""
        events = self.jobs.chats.find(name).events
        start = int(topic.cursor) if topic.cursor.isdigit() else 0
        new = events[start:]
        topic.cursor = str(start + len(new))
        return [("chat.events", {"id": name, "events": new})] if new else []


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return a line of metrics.jsonl, or None if it is none."""
    try:
        data = parse_json(line)
    except ValueError:
        return None
    is_row = isinstance(data, dict) and isinstance(data.get("step"), int)
    return (
        {
            key: NON_FINITE.get(value, value) if isinstance(value, str) else value
            for key, value in data.items()
        }
        if is_row
        else None
    )


def parse_topics(text: str, since: str) -> dict[str, Topic]:
    """Return the topics that a page asks for, with their cursors.

    Raises:
        Refusal: There are too many, or one of an unknown kind.
    """
    names = [name for name in text.split(",") if name]
    kinds = {name.partition(":")[0] for name in names}
    if len(names) > MAX_TOPICS or not kinds <= {"runs", "run", "log", "file", "jobs", "chat"}:
        raise Refusal(400, "usage", "unknown topics")
    try:
        cursors = parse_json(since) if since else {}
    except ValueError:
        cursors = {}
    known: Mapping[str, Any] = cursors if isinstance(cursors, dict) else {}
    return {name: Topic(str(known.get(name, ""))) for name in names}


async def stream_events(
    source: EventSource,
    about: Mapping[str, Any],
    is_closing: Callable[[], bool],
    is_gone: Callable[[], Any],
) -> AsyncIterator[bytes]:
    """Yield the frames of an event stream until the page leaves or the server ends.

    The first one says which build of the page the server has, so that an older page can reload.
    """
    yield f"event: hello\ndata: {json.dumps(about)}\n\n".encode()
    pinged = time.monotonic()
    while not await is_gone():
        if is_closing():
            yield b"event: server.closing\ndata: {}\n\n"
            return
        events = await to_thread.run_sync(source.collect)
        if events:
            cursors = json.dumps({name: topic.cursor for name, topic in source.topics.items()})
        for name, data in events:
            text = json.dumps(encode_nonfinite_numbers(data), ensure_ascii=False)
            yield f"id: {cursors}\nevent: {name}\ndata: {text}\n\n".encode()
        if time.monotonic() - pinged > PING_SECONDS:
            pinged = time.monotonic()
            yield b": ping\n\n"
        await asyncio.sleep(POLL_SECONDS)
