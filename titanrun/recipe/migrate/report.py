"""What became of every key, as text for a person."""

from collections.abc import Iterable, Iterator

from titanrun.config.emit import flow
from titanrun.config.encoding import on_one_line
from titanrun.config.render import render_text
from titanrun.recipe.migrate.migration import Migration
from titanrun.recipe.migrate.plan import SAME, Item
from titanrun.recipe.migrate.tool import Tool

INDENT = "  "
HEADINGS = {
    "refused": "refused, because this version of titanrun cannot do it:",
    "changed": "changed in meaning:",
    "unread": "left out, because nothing reads it:",
    "mapped": "mapped:",
}


def report(migration: Migration, file: str, *, quiet: bool = False) -> str:
    """The whole report: a line that counts, what is refused, changed, left out, mapped and written out, and what is still wrong.

    A quiet one tells what is refused and what is wrong.
    """
    lines = [] if quiet else [*itemised(migration, file)]
    if quiet:
        refused = in_file_order([item for item in migration.items if item.fate == "refused"])
        lines = [f"{file}: {line}" for line in grouped(refused, migration.tool)]
    text = "".join(f"{on_one_line(line)}\n" for line in lines)
    if migration.problems:
        text += "\nwhat `titanrun validate` says of the recipe:\n" * (not quiet) + render_text(
            migration.problems
        )
    return text


def itemised(migration: Migration, file: str) -> Iterator[str]:
    """All lines about keys."""
    tool = migration.tool
    yield counted(migration.items, file)
    for fate, heading in HEADINGS.items():
        chosen = in_file_order(
            [item for item in migration.items if item.fate == fate and is_told(item)]
        )
        if chosen:
            told = (
                grouped(chosen, tool)
                if fate in ("refused", "unread")
                else (line for item in chosen for line in item_lines(item, tool))
            )
            yield from ("", heading, *(f"{INDENT}{line}" for line in told))
    repeated = sum(item.words == SAME for item in migration.items)
    if repeated:
        yield f"{INDENT}and {repeated} keys with the value that titanrun has by default"
    filled = [item for item in migration.items if item.fate == "mapped" and item.entry is None]
    if filled:
        yield from ("", "written out, because titanrun's default is another:")
        yield from (
            f"{INDENT}{becomes(item)}{f'  ({item.words})' if item.words else ''}" for item in filled
        )


def is_told(item: Item) -> bool:
    """Whether an item gets lines of its own: what was written, and of the defaults those that are not simply written out."""
    return item.words != SAME if item.entry else item.fate in ("refused", "changed")


def counted(items: Iterable[Item], file: str) -> str:
    """How many keys came to what."""
    fates = [item.fate for item in items if item.entry]
    words = {
        "mapped": "mapped",
        "changed": "changed in meaning",
        "unread": "left out",
        "refused": "refused",
    }
    return f"{file}: {len(fates)} keys: " + ", ".join(
        f"{fates.count(fate)} {word}" for fate, word in words.items()
    )  # type: ignore[arg-type]


def in_file_order(items: list[Item]) -> list[Item]:
    """Written keys by their place; defaults after them."""
    return sorted(
        items, key=lambda item: (item.entry is None, item.entry.origin.line if item.entry else 0)
    )


def grouped(items: list[Item], tool: Tool) -> Iterator[str]:
    """Keys under the reason that they share."""
    reasons: dict[str, list[Item]] = {}
    for item in items:
        reasons.setdefault(item.words.removeprefix("left out: "), []).append(item)
    for reason, sharing in reasons.items():
        yield f"{reason}:"
        yield from (f"{INDENT}{was(item, tool)}" for item in sharing)


def item_lines(item: Item, tool: Tool) -> Iterator[str]:
    """One key: where it stands, what it was, and what it is now."""
    name = item.entry.written if item.entry else item.path
    stays = all(
        name == written_path(target) and value == item.value
        for target, value in item.targets.items()
    )
    before = was(item, tool)
    yield before if stays else f"{before} -> {becomes(item)}"
    if item.words:
        yield f"{INDENT}{item.words}"


def was(item: Item, tool: Tool) -> str:
    """A key as it was written, or the program's default."""
    place = f"line {item.entry.origin.line}" if item.entry else "default"
    name = item.entry.written if item.entry else item.path
    value = item.entry.original if item.entry and item.entry.original is not None else item.value
    return f"{place}: {name}{tool.assignment}{'unset' if value is None else shorten_text(tool.spelled(value))}"


def becomes(item: Item) -> str:
    """The values of the recipe that a key became."""
    return ", ".join(
        f"{written_path(target)}: {shorten_text(flow(value))}"
        for target, value in item.targets.items()
    )


def written_path(target: tuple[str, ...]) -> str:
    """`converters[float8_linear].emulate`."""
    return "".join(step if step.startswith("[") else f".{step}" for step in target).lstrip(".")


def shorten_text(text: str) -> str:
    """Long values cut."""
    return text if len(text) <= 60 else text[:57] + "..."
