"""`titanrun report`: all that a run's folder tells of it, on one HTML page that can be passed on."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import Parser
from titanrun.cli.page import folded, page, paragraph, preformatted, table
from titanrun.cli.plots import svg
from titanrun.cli.plots.axes import Curve
from titanrun.cli.voice import note
from titanrun.components.checkpoints.manifest import read_manifest
from titanrun.components.metrics.jsonl import read_metrics
from titanrun.components.metrics.readings import SHOWN, SILENT, duration
from titanrun.config.base import dump
from titanrun.config.emit import flow
from titanrun.config.problems import ProblemsFound, fail
from titanrun.config.tree import path_text
from titanrun.ledger.entry import Entry, read_entry
from titanrun.ledger.live import here_now, live_state
from titanrun.ledger.met import problems_met
from titanrun.ledger.series import Series, thinned
from titanrun.recipe.resolve import read_resolved
from titanrun.recipe.run_files import METRICS, RESOLVED, RUN_JSON, SOURCES, read_json
from titanrun.recipe.saved import checkpoints_at
from titanrun.recipe.sources import data_leaves

SUMMARY = (
    "Write one HTML page about a run: its curves, every setting with where it was written, machine and packages, checkpoints, and the "
    "problems that it met. The page needs nothing beside itself."
)
EXAMPLES = """  titanrun report runs/first                             writes runs/first/report.html
  titanrun report runs/first -o first.html"""
# points that a picture of this width can show
MOST_POINTS = 800
FIRST = ("loss", "validation/loss")
MIB = 1024**2
WRITTEN = ("default", "decided")


def run(arguments: list[str]) -> int:
    """Writes the page."""
    parser = Parser("report", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it; report.html in the run directory where nothing is said",
    )
    options = parser.parse_args(arguments)
    folder = Path(options.run)
    if not (folder / RUN_JSON).is_file():
        raise fail(
            "file",
            f"'{folder}' is no run directory: it has no {RUN_JSON}",
            help="name a folder that titanrun train wrote",
        )
    out = Path(options.output) if options.output else folder / "report.html"
    text = report(folder)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fail(
            "file",
            f"cannot write '{out}': {(error.strerror or str(error)).lower()}",
            help="name a file with -o",
        ) from None
    note(options, f"wrote {out}")
    return 0


def report(folder: Path) -> str:
    """The page's text."""
    entry = read_entry(folder)
    state = live_state(entry, here_now())
    starts = [
        start
        for start in read_json(folder / RUN_JSON).get("starts") or []
        if isinstance(start, dict)
    ]
    sections = [
        ("Summary", summary(entry, state, starts)),
        ("Curves", curves(folder)),
        ("Problems met", problems(folder, entry)),
        ("Recipe", recipe(folder)),
        ("Checkpoints", checkpoints(folder)),
        ("Machine and packages", surroundings(starts[-1] if starts else {})),
        ("Starts", all_starts(starts)),
    ]
    return page(str(entry.name or folder.name), f"{folder.resolve()}, {state}", sections)


def summary(entry: Entry, state: str, starts: list[dict[str, Any]]) -> str:
    """How far the run came, and how well."""
    steps = f"{entry.step} of {entry.steps}" if entry.steps else str(entry.step)
    commit = (
        f"{entry.commit}{', with uncommitted changes' if entry.dirty else ''}"
        if entry.commit
        else None
    )
    facts = {
        "state": state,
        "step": steps,
        "loss": entry.loss,
        "best validation loss": entry.validation,
        "tokens/s of a device": None if entry.tps is None else f"{entry.tps:,.0f}",
        "started": entry.started,
        "duration": None if entry.seconds is None else duration(entry.seconds),
        "starts": len(starts),
        "commit": commit,
        "tags": ", ".join(entry.tags) or None,
    }
    return table(("", ""), [(name, value) for name, value in facts.items() if value is not None])


def curves(folder: Path) -> str:
    """A picture for each metric; held-out and training loss share one."""
    path = folder / METRICS
    try:
        lines = read_metrics(path) if path.exists() else []
    except ProblemsFound as error:
        return paragraph(error.problems[0].message, "bad")
    names = dict.fromkeys([*SHOWN, *(name for line in lines for name in line)])
    drawn = {
        name: curve
        for name in names
        if name not in SILENT and (curve := curve_of(name, lines)) is not None
    }
    if not drawn:
        return paragraph("no step was logged", "soft")
    together = [
        [drawn[name] for name in FIRST if name in drawn],
        *([drawn[name]] for name in drawn if name not in FIRST),
    ]
    pictures = [
        svg.plot(some, title=" and ".join(curve.name for curve in some), x_label="step")
        for some in together
        if some
    ]
    return f'<div class="curves">\n{"".join(pictures)}</div>'


def curve_of(name: str, lines: list[dict[str, Any]]) -> Curve | None:
    """A metric over the steps, no finer than can be seen; None where no line has it as a number."""
    points = [
        (line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)
    ]
    if not points:
        return None
    few = thinned(
        Series([float(step) for step, _ in points], [float(value) for _, value in points]),
        MOST_POINTS,
    )
    return Curve(name, few.x, few.y)


def problems(folder: Path, entry: Entry) -> str:
    """What the ranks warned of, and how the run ended."""
    found = problems_met(folder)
    if not found:
        return paragraph("none", "soft")
    rows = [
        (met.time, met.level, met.log, met.text, met.count if met.count > 1 else "")
        for met in found
    ]
    return table(("first at", "", "log", "what", "times"), rows, right=(4,))


def recipe(folder: Path) -> str:
    """What was written and where, then all other settings, then the resolved recipe as a file."""
    try:
        leaves = data_leaves(dump(read_resolved(folder / RESOLVED)))
        text = (folder / RESOLVED).read_text(encoding="utf-8")
    except (ProblemsFound, OSError) as error:
        return paragraph(f"it cannot be read: {error}", "bad")
    origins = read_json(folder / SOURCES).get("values") or {}
    rows = [
        (path_text(path), flow(value), origin_text(origins.get(path_text(path)) or {}))
        for path, value in leaves
    ]
    written = [row for row in rows if row[2] not in WRITTEN]
    rest = [row for row in rows if row[2] in WRITTEN]
    head = ("setting", "value", "from")
    parts = [
        table(head, written, code=(0, 1, 2)),
        folded(f"{len(rest)} settings that nobody wrote", table(head, rest, code=(0, 1, 2))),
        folded(RESOLVED, preformatted(text)),
    ]
    return "\n".join(parts)


def origin_text(source: Mapping[str, Any]) -> str:
    """Where a value was written: `recipe.yaml:14:7`, an override, or who chose it."""
    if "file" not in source:
        return str(source.get("source", "default"))
    place = f"{source['file']}:{source.get('line')}:{source.get('column')}"
    return place if source.get("source") == "file" else f"{place} ({source.get('source')})"


def checkpoints(folder: Path) -> str:
    """The checkpoints that are there."""
    rows = [checkpoint_row(step, path) for step, path in checkpoints_at(folder).items()]
    head = ("step", "holds", "MiB", "saved at", "validation loss", "folder")
    return table(head, rows, right=(0, 2), code=(5,)) if rows else paragraph("none", "soft")


def checkpoint_row(step: int, path: Any) -> tuple[object, ...]:
    """One checkpoint, as its manifest tells."""
    try:
        manifest = read_manifest(path)
    except ProblemsFound as error:
        return (step, f"damaged: {error.problems[0].message}", "", "", "", path.name)
    return (
        step,
        manifest.holds,
        f"{manifest.size / MIB:.1f}",
        manifest.saved_at,
        manifest.validation_loss,
        path.name,
    )


def surroundings(start: Mapping[str, Any]) -> str:
    """The machine of the last start, and what is installed there."""
    environment = dict(start.get("environment") or {})
    packages = environment.pop("packages", None) or {}
    facts = [
        *facts_of(start.get("machine") or {}),
        *facts_of(start.get("decided") or {}),
        *facts_of(environment),
    ]
    listed = table(("package", "version"), sorted(packages.items()), code=(0, 1))
    return table(("", ""), facts, code=(1,)) + "\n" + folded(f"{len(packages)} packages", listed)


def facts_of(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of nested facts, each with its path in words."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from facts_of(value, f"{before}{name} ")
        elif value not in (None, [], {}):
            yield (
                f"{before}{name}".replace("_", " "),
                value if isinstance(value, str) else json.dumps(value),
            )


def all_starts(starts: list[dict[str, Any]]) -> str:
    """Each start with its command and what it changed."""
    rows = [
        (
            start.get("time"),
            " ".join(start.get("argv") or []),
            "; ".join(start.get("changes") or []),
        )
        for start in starts
    ]
    return table(("time", "command", "changed"), rows, code=(1, 2))
