"""One run: its facts, curves, log and settings."""

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.manifest import is_checkpoint, read_manifest
from titanrun.components.metrics.spec.metric_format import METRIC_FORMATS
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.control_characters import escape_lines
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound
from titanrun.config.read_source import read_source
from titanrun.config.tree import format_path, to_plain_data
from titanrun.recipe.resolving.provenance import list_data_leaves
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    SOURCES,
    get_starts,
    read_json_or_empty,
)
from titanrun.runs.log_problems import LOGS, collect_log_problems
from titanrun.runs.metric_series import MetricSeries, XAxis, downsample_series, load_metric_series
from titanrun.ui.refusal import Refusal
from titanrun.ui.run_catalog import RunCatalog, load_starts

LOG_PAGE_BYTES = 256 * 1024
MAX_POINTS = 4000
MAX_METRICS = 200
SAMPLES = "samples.jsonl"
MAX_SAMPLES_BYTES = 4 * 1024**2
RESUMED = re.compile(r"\bresuming after step (\d+) from ")
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")


def describe_run_folder(catalog: RunCatalog, run_id: str) -> dict[str, Any]:
    """Return what is known about a run, without its curves and its log."""
    entry, state = catalog.load_entry(run_id)
    folder = Path(entry.run)
    starts = get_starts(read_json_or_empty(folder / RUN_JSON))
    last = starts[-1] if starts else {}
    environment = dict(last.get("environment") or {})
    return {
        "entry": catalog.describe_entry(entry, state),
        "starts": load_starts(folder),
        "decided": last.get("decided") or {},
        "machine": last.get("machine") or {},
        "packages": environment.get("packages") or {},
        "git": environment.get("git") or {},
        "host": entry.host,
        "lineage": catalog.find_relatives(folder),
        "problems": [asdict(problem) for problem in collect_log_problems(folder)],
        "checkpoints": describe_checkpoints(folder),
        "resumes": find_resumes(folder),
        "metrics": list_metrics(folder),
        "logs": [log.stem for log in list_logs(folder)],
        "has_samples": (folder / SAMPLES).is_file(),
    }


def describe_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Return the checkpoints of a run; a damaged one has its reason."""
    found: list[dict[str, Any]] = []
    for step, path in get_checkpoints_by_step(folder).items():
        if not is_checkpoint(path):
            found.append({"step": step, "damage": "not complete"})
            continue
        try:
            manifest = read_manifest(path)
        except ProblemsFound as error:
            found.append({"step": step, "damage": error.problems[0].message})
            continue
        found.append(
            {
                "step": step,
                "bytes": manifest.size,
                "saved_at": manifest.saved_at,
                "holds": manifest.holds,
                "validation_loss": manifest.validation_loss,
            }
        )
    return found


def find_resumes(folder: Path) -> list[int]:
    """Return the steps after which a run has gone on from a checkpoint of its own."""
    found: list[int] = []
    for log in list_logs(folder)[:1]:
        with suppress(OSError), log.open(encoding="utf-8", errors="replace") as file:
            found += [int(match[1]) for line in file if (match := RESUMED.search(line))]
    return sorted(set(found))


def list_metrics(folder: Path) -> list[str]:
    """Return the names of the logged numbers, those that matter most first."""
    try:
        lines = read_metrics(folder / METRICS)
    except ProblemsFound:
        return []
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    known = [name for name in METRIC_FORMATS if name in names]
    return [*known, *(name for name in names if name not in METRIC_FORMATS)][:MAX_METRICS]


def load_series(
    folder: Path, metrics: Sequence[str], x: XAxis, max_points: int
) -> dict[str, dict[str, Any]]:
    """Return the curves of some metrics; one that the run has not logged is missing.

    Points that are not finite are given apart, because nothing can be drawn there.
    """
    found = {}
    for name in metrics[:MAX_METRICS]:
        try:
            whole = load_metric_series(folder / METRICS, name, x)
        except ProblemsFound:
            continue
        series = downsample_series(whole, min(max(max_points, 10), MAX_POINTS))
        found[name] = {
            "x": list(series.x),
            "y": [value if math.isfinite(value) else None for value in series.y],
            "nonfinite": list_nonfinite(whole),
        }
    return found


def list_nonfinite(series: MetricSeries) -> list[float]:
    """Return the positions of values that are not finite, at most as many as can be told apart."""
    found = [at for at, value in zip(series.x, series.y, strict=True) if not math.isfinite(value)]
    return found[:: max(1, len(found) // 200)]


def get_metrics_cursor(folder: Path) -> str:
    """Return the end of metrics.jsonl, from which the event stream goes on."""
    try:
        about = (folder / METRICS).stat()
    except OSError:
        return "0-0"
    return f"{about.st_ino}-{about.st_size}"


def list_logs(folder: Path) -> list[Path]:
    """Return the logs of the ranks of a run."""
    return sorted((folder / LOGS).glob("rank-*.log"), key=lambda log: (len(log.stem), log.stem))


def read_log(folder: Path, rank: str, start: int | None) -> dict[str, Any]:
    """Return a page of a log in whole lines: from a byte offset on, or the last one.

    Raises:
        Refusal: There is no such log.
    """
    path = next((log for log in list_logs(folder) if log.stem == rank), None)
    if path is None:
        raise Refusal(404, "log", "there is no such log")
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = max(0, size - LOG_PAGE_BYTES) if start is None else min(max(start, 0), size)
            file.seek(at)
            data = file.read(LOG_PAGE_BYTES)
    except OSError as error:
        raise Refusal(404, "log", (error.strerror or str(error)).lower()) from None
    if start is None and at > 0:
        skipped = data.find(b"\n") + 1
        at, data = at + skipped, data[skipped:]
    whole = data.rfind(b"\n") + 1
    return {
        "text": to_plain_text(data[:whole].decode("utf-8", "replace")),
        "from": at,
        "to": at + whole,
        "size": size,
    }


def to_plain_text(text: str) -> str:
    """Return text without codes for terminals; other control characters are escaped."""
    return escape_lines(ANSI.sub("", text))


def list_settings(folder: Path) -> list[dict[str, Any]]:
    """Return every setting of a run with its recorded source.

    The file is read as plain data: no plug-in is imported. Secrets stay references.
    """
    leaves = list_data_leaves(to_plain_data(read_source(str(folder / RESOLVED))))
    sources = read_json_or_empty(folder / SOURCES).get("values") or {}
    return [
        {"path": name, "value": value, **(sources.get(name) or {"source": "default"})}
        for path, value in leaves
        if (name := format_path(path))
    ]


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples that a run has generated, a line each; torn ones are left out."""
    try:
        with (folder / SAMPLES).open("rb") as file:
            text = file.read(MAX_SAMPLES_BYTES)
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            data = parse_json(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found.append(data)
    return found
