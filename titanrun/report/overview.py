"""The head of a report: name, state, a sentence, and the most important figures."""

from collections.abc import Sequence
from datetime import datetime
from html import escape

from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.report.figures import (
    format_bytes,
    format_count,
    format_duration,
    format_loss,
    format_speed,
    format_whole,
)
from titanrun.report.html_page import (
    escape_name,
    format_html_facts,
    format_html_paragraph,
    format_html_table,
)
from titanrun.report.report_data import ReportRun

STATE_COLORS = {
    "finished": "ok",
    "running": "info",
    "starting": "info",
    "preempted": "warning",
    "stale": "warning",
    "failed": "error",
    "crashed": "error",
}
STATE_SHAPES = {"ok": "✓", "info": "▶", "warning": "!", "error": "✕"}


def build_header(runs: Sequence[ReportRun]) -> str:
    """Build the title with the state, and a sentence on each run."""
    if len(runs) == 1:
        (run,) = runs
        title = f"<h1>{escape_name(run.name)}</h1>\n{build_state(run.state)}"
        sentences = escape(write_summary(run))
        where = (
            f'<p class="soft">{escape_name(str(run.folder.absolute()))}</p>'
            if run.has_paths
            else ""
        )
    else:
        title = f"<h1>{len(runs)} runs</h1>"
        items = [
            f'<li><div class="title"><span>{escape_name(run.name)}</span> '
            f"{build_state(run.state)}</div>{escape(write_summary(run))}</li>"
            for run in runs
        ]
        sentences, where = "".join(items), ""
    tag = "p" if len(runs) == 1 else "ul"
    return f'<div class="title">{title}</div>\n<{tag} class="summary">{sentences}</{tag}>\n{where}'


def build_state(state: str) -> str:
    """Build the mark of a state: a shape, a word and a color."""
    color = STATE_COLORS.get(state, "soft")
    shape = STATE_SHAPES.get(color, "?")
    return f'<span class="state {color}"><span aria-hidden="true">{shape}</span> {state}</span>'


def write_summary(run: ReportRun) -> str:
    """Write what a run did as a sentence or two."""
    entry, recipe = run.summary, load_recipe(run)
    model = "A model" if recipe is None else get_model_title(recipe)
    steps = f"{format_whole(entry.step)} steps"
    if entry.steps:
        steps = f"{format_whole(entry.step)} of {format_whole(entry.steps)} steps"
    text = f"{model} trained for {steps}"
    if run.num_tokens is not None:
        text += f", {format_count(run.num_tokens)} tokens"
    if entry.seconds is not None:
        text += f", in {format_duration(entry.seconds)}"
    text += "."
    loss = run.series.get("loss")
    if loss is not None and len(loss.y) > 1:
        text += f" The loss went from {format_loss(loss.y[0])} to {format_loss(loss.y[-1])}."
    if entry.validation is not None:
        text += f" The best validation loss is {format_loss(entry.validation)}."
    return text


def load_recipe(run: ReportRun) -> Recipe | None:
    """Load the resolved recipe, None if it cannot be read."""
    try:
        return load_resolved(run.folder / RESOLVED)
    except (ProblemsFound, OSError):
        return None


def get_model_title(recipe: Recipe) -> str:
    """Return the model's name and flavor."""
    flavor = getattr(recipe.model, "flavor", None)
    return f"{recipe.model.name} {flavor}" if flavor else str(recipe.model.name)


def build_figures_section(run: ReportRun) -> str:
    """Build the most important figures of a run."""
    entry = run.summary
    commit = f"{entry.commit}{', with changes' if entry.dirty else ''}" if entry.commit else None
    facts = {
        "step": format_whole(entry.step)
        + (f" of {format_whole(entry.steps)}" if entry.steps else ""),
        "loss": None if entry.loss is None else format_loss(entry.loss),
        "best validation loss": None if entry.validation is None else format_loss(entry.validation),
        "speed per device": None if entry.tps is None else format_speed(entry.tps),
        "duration": None if entry.seconds is None else format_duration(entry.seconds),
        "started": None if entry.started is None else format_time(entry.started),
        "starts": str(len(run.starts)) if len(run.starts) > 1 else None,
        "commit": commit,
        "tags": ", ".join(entry.tags) or None,
    }
    return format_html_facts([(name, value) for name, value in facts.items() if value is not None])


def format_time(text: str) -> str:
    """Format a time of ISO 8601 to the minute, in its own time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = time.strftime("%z")
    return time.strftime("%Y-%m-%d %H:%M") + (" UTC" if zone == "+0000" else f" {zone}".rstrip())


def build_checkpoints_section(run: ReportRun) -> str:
    """Build the section of existing checkpoints."""
    rows = []
    for step, path in get_checkpoints_by_step(run.folder).items():
        try:
            manifest = read_manifest(path)
        except ProblemsFound as error:
            message = run.redact(error.problems[0].message)
            rows.append((format_whole(step), f"damaged: {message}", "", "", "", path.name))
            continue
        loss = manifest.validation_loss
        rows.append(
            (
                format_whole(step),
                manifest.holds,
                format_bytes(manifest.size),
                format_time(manifest.saved_at),
                "" if loss is None else format_loss(loss),
                path.name,
            )
        )
    if not rows:
        return format_html_paragraph("none", "soft")
    head = ("step", "holds", "size", "saved", "validation loss", "folder")
    return format_html_table(
        head, rows, label="checkpoints", right_aligned=(0, 2, 4), code_columns=(5,)
    )
