"""Report of the outcome of every key, as text for people."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from titanrun.config.diagnostics import render_problems_as_text
from titanrun.config.encoding import escape_to_one_line
from titanrun.config.pluralize import pluralize
from titanrun.config.redaction import star_out_assigned_secrets
from titanrun.config.serialize import to_flow_yaml
from titanrun.recipe.migrate.migration import Migration
from titanrun.recipe.migrate.migration_plan import SAME, ItemOutcome, MigrationItem
from titanrun.recipe.migrate.source_tool import SourceTool

INDENT = "  "
HEADINGS = {
    "refused": "refused:",
    "changed": "changed in meaning:",
    "manual": "not carried over: set it yourself:",
    "unread": "left out, because it has no effect:",
    "mapped": "mapped:",
}


def format_migration_report(
    migration: Migration,
    file: str,
    *,
    is_quiet: bool = False,
    columns: int | None = None,
    use_color: bool = False,
) -> str:
    """Return the report: counts, keys by outcome, defaults written, remaining problems.

    Args:
        migration: The migrated configuration.
        file: Its name.
        is_quiet: Whether to list only what is refused and the problems.
        columns: Width of the terminal, to which lines are wrapped.
        use_color: Whether to color the problems.
    """
    lines = [] if is_quiet else [*iter_report_lines(migration, file)]
    if is_quiet:
        refused = sort_items_by_line(
            [item for item in migration.items if item.outcome == "refused"]
        )
        lines = [f"{file}: {line}" for line in iter_lines_by_reason(refused, migration.tool)]
    text = "".join(f"{wrap_report_line(escape_to_one_line(line), columns)}\n" for line in lines)
    if migration.problems:
        text += "\nproblems that `titanrun validate` finds in the recipe:\n" * (
            not is_quiet
        ) + render_problems_as_text(migration.problems, use_color=use_color, columns=columns)
    return text


def wrap_report_line(line: str, columns: int | None) -> str:
    """Wrap a line between words, with its continuation lines indented by four more."""
    if columns is None or len(line) <= columns:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return "\n".join(
        wrap(
            line,
            columns,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def iter_report_lines(migration: Migration, file: str) -> Iterator[str]:
    """Yield all lines about keys."""
    tool = migration.tool
    yield format_outcome_counts(migration.items, file)
    for fate, heading in HEADINGS.items():
        chosen = sort_items_by_line(
            [item for item in migration.items if item.outcome == fate and is_reported(item)]
        )
        if chosen:
            details = (
                iter_lines_by_reason(chosen, tool)
                if fate in ("refused", "manual", "unread")
                else (line for item in chosen for line in iter_item_lines(item, tool))
            )
            yield from ("", heading, *(f"{INDENT}{line}" for line in details))
    repeated = sum(item.words == SAME for item in migration.items)
    if repeated:
        yield f"{INDENT}and {repeated} keys with titanrun's default value"
    filled = [item for item in migration.items if item.outcome == "mapped" and item.entry is None]
    if filled:
        yield from ("", "written out, because titanrun's default differs:")
        yield from (
            f"{INDENT}{format_target_values(item)}{f'  ({item.words})' if item.words else ''}"
            for item in filled
        )


def is_reported(item: MigrationItem) -> bool:
    """Return whether an item gets its own lines.

    Written keys do, and those defaults that are not just written out.
    """
    return item.words != SAME if item.entry else item.outcome in ("refused", "changed")


def format_outcome_counts(items: Iterable[MigrationItem], file: str) -> str:
    """Return the number of keys by outcome, and of defaults that get lines of their own."""
    reported = list(items)
    fates = [item.outcome for item in reported if item.entry]
    words: dict[ItemOutcome, str] = {
        "mapped": "mapped",
        "changed": "changed in meaning",
        "unread": "left out",
        "refused": "refused",
    }
    if "manual" in fates:
        words["manual"] = "to set yourself"
    counts = ", ".join(f"{fates.count(fate)} {word}" for fate, word in words.items())
    defaults = [item.outcome for item in reported if not item.entry and is_reported(item)]
    further = "".join(
        f"; {pluralize(defaults.count(fate), 'default')} {words[fate]}"
        for fate in dict.fromkeys(defaults)
    )
    return f"{file}: {len(fates)} keys: {counts}{further}"


def sort_items_by_line(items: list[MigrationItem]) -> list[MigrationItem]:
    """Sort written keys by their line, with defaults after them."""
    return sorted(
        items, key=lambda item: (item.entry is None, item.entry.origin.line if item.entry else 0)
    )


def iter_lines_by_reason(items: list[MigrationItem], tool: SourceTool) -> Iterator[str]:
    """Yield keys grouped by the reason that they share."""
    reasons: dict[str, list[MigrationItem]] = {}
    for item in items:
        reasons.setdefault(item.words.removeprefix("left out: "), []).append(item)
    for reason, sharing in reasons.items():
        yield f"{reason}:"
        yield from (f"{INDENT}{format_source_value(item, tool)}" for item in sharing)


def iter_item_lines(item: MigrationItem, tool: SourceTool) -> Iterator[str]:
    """Yield one key: its line, its former value, and its new value."""
    name = item.entry.written_path if item.entry else item.path
    stays = all(
        name == format_target_path(target) and value == item.value
        for target, value in item.targets.items()
    )
    before = format_source_value(item, tool)
    yield before if stays else f"{before} -> {format_target_values(item)}"
    if item.words:
        yield f"{INDENT}{item.words}"


def format_source_value(item: MigrationItem, tool: SourceTool) -> str:
    """Return a key as it was written, or the program's default."""
    place = f"line {item.entry.origin.line}" if item.entry else "default"
    name = item.entry.written_path if item.entry else item.path
    value = item.entry.original if item.entry and item.entry.original is not None else item.value
    shown = "unset" if value is None else shorten_text(tool.format_value(value))
    return star_out_assigned_secrets(f"{place}: {name}{tool.assignment}{shown}")


def format_target_values(item: MigrationItem) -> str:
    """Return the values in the recipe that a key was converted to."""
    return ", ".join(
        f"{format_target_path(target)}: {shorten_text(to_flow_yaml(value))}"
        for target, value in item.targets.items()
    )


def format_target_path(target: tuple[str, ...]) -> str:
    """Format a target as `converters[float8_linear].emulate`."""
    return "".join(step if step.startswith("[") else f".{step}" for step in target).lstrip(".")


def shorten_text(text: str) -> str:
    """Truncate a text to 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."
