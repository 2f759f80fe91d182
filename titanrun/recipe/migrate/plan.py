"""From a foreign configuration to the values of a recipe, and what became of each key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from titanrun.config.suggest import closest
from titanrun.recipe.migrate.entries import Entry, Written
from titanrun.recipe.migrate.keys import Key
from titanrun.recipe.migrate.places import (
    Target,
    data_of,
    is_default,
    is_required,
    not_available,
    target_steps,
)
from titanrun.recipe.migrate.tool import Tool

Fate = Literal["mapped", "changed", "unread", "refused"]


@dataclass(frozen=True, slots=True)
class Item:
    """What became of one key: `entry` where it was written, else the program's default counts."""

    path: str
    value: Any
    fate: Fate
    targets: dict[Target, Any] = field(default_factory=dict)
    words: str = ""
    entry: Entry | None = None


SAME = "the same by default"
AS_IT_IS = "left out: without it titanrun does the same"
NOT_BUILT = "not built in this version"


def plan(written: Written, tool: Tool) -> list[Item]:
    """The fate of every key that was written, and of every default that differs from titanrun's, in the order of the table."""
    entries: dict[str, Entry] = {}
    items: list[Item] = []
    for entry in written.entries:
        before = entries.get(entry.path)
        if before is not None and entry.path != entry.written:
            items.append(
                Item(
                    entry.path,
                    entry.value,
                    "unread",
                    words=f"left out: '{before.written}' is written too",
                    entry=entry,
                )
            )
            continue
        if before is not None:
            items.append(
                Item(
                    entry.path,
                    before.value,
                    "unread",
                    words=f"left out: '{entry.written}' is written too",
                    entry=before,
                )
            )
        entries[entry.path] = entry
    values = {
        path: entries[path].value if path in entries else key.default
        for path, key in tool.keys.items()
    }
    for path, key in tool.keys.items():
        if path in entries or path in tool.counted:
            items.append(fate_of(key, entries.get(path), values, tool))
    items += [unknown(entry, tool) for path, entry in entries.items() if path not in tool.keys]
    items += implied(items, tool)
    items = without_own_defaults(without_missing(items, tool), tool)
    return without_repeated_defaults(items, tool) if written.is_complete else items


def fate_of(key: Key, entry: Entry | None, values: dict[str, Any], tool: Tool) -> Item:
    """What becomes of one key, whatever this version has of its target."""
    value = values[key.path]
    if entry is not None and entry.refused:
        return Item(key.path, value, "refused", words=entry.refused, entry=entry)
    unread = key.unread(values)
    converted = key.converted(value, values)
    targets = {target_steps(target): becomes for target, becomes in converted.targets.items()}
    if unread:
        return Item(
            key.path,
            value,
            "unread",
            targets if entry else {},
            f"left out: {tool.name} reads it only {unread}",
            entry,
        )
    if converted.refused or (
        key.outcome == "refused" and key.convert is None and value != key.default
    ):
        return Item(key.path, value, "refused", words=converted.refused or key.how, entry=entry)
    if value is None and key.default is None and key.convert is None:
        targets = {}
    if not targets:
        words = converted.how or (key.how if key.outcome == "unread" else AS_IT_IS)
        return Item(key.path, value, "unread", words=words, entry=entry)
    how = converted.how or ("" if key.convert else key.how)
    how = "; ".join(filter(None, [how, entry.how if entry else ""]))
    return Item(key.path, value, "changed" if how else "mapped", targets, how, entry)


def unknown(entry: Entry, tool: Tool) -> Item:
    """The refusal of a key that the program does not have."""
    meant = closest(entry.path, tool.suggested or tool.keys) or closest_leaf(entry.path, tool)
    words = f"{tool.name} has no such key" + (f"; did you mean '{meant}'?" if meant else "")
    return Item(entry.path, entry.value, "refused", words=entry.refused or words, entry=entry)


def closest_leaf(path: str, tool: Tool) -> str | None:
    """The key of the same last word in another section."""
    last = path.rpartition(".")[2]
    return next((known for known in tool.keys if known.rpartition(".")[2] == last), None)


def implied(items: list[Item], tool: Tool) -> Iterator[Item]:
    """What the program does without a key for it; told only where this recipe has a place for it."""
    placed = {target for item in items for target in item.targets if item.fate != "unread"}
    data = data_of(placements(items))
    for text, value, why in tool.implied:
        target = target_steps(text)
        holder_is_there = any(other[: len(target) - 1] == target[:-1] for other in placed)
        if target not in placed and holder_is_there and not not_available(data, target, value, ""):
            yield Item("", value, "mapped", {target: value}, why)


def placements(items: Iterable[Item]) -> Iterator[tuple[Target, Any]]:
    """The values that make the recipe; of a refused key those that the recipe cannot do without."""
    for item in items:
        if item.fate != "unread":
            yield from item.targets.items()


def without_missing(items: list[Item], tool: Tool) -> list[Item]:
    """The same items, those refused whose target this version does not have."""
    data = data_of(placements(items))
    return [
        item if item.fate in ("unread", "refused") else available(item, data, tool)
        for item in items
    ]


def available(item: Item, data: dict[str, Any], tool: Tool) -> Item:
    """The item, or its refusal where this version lacks what it asks for; what a recipe cannot do without stays in it."""
    extension = tool.keys[item.path].extension if item.path in tool.keys else ""
    for target, value in item.targets.items():
        missing = not_available(data, target, value, extension)
        if not missing:
            continue
        words = f"{missing} is {NOT_BUILT}"
        if item.entry is None and target[-1] != "name":
            return replace(item, fate="unread", targets={})
        if not is_required(target):
            kept = {
                other: inside
                for other, inside in item.targets.items()
                if not not_available(data, other, inside, extension)
            }
            return replace(item, fate="refused", targets=kept, words=words)
        if target[-1] == "name":
            return replace(item, fate="refused", words=f"{words} (kept: a recipe needs one)")
    return item


def without_own_defaults(items: list[Item], tool: Tool) -> list[Item]:
    """The items without defaults of the program that are titanrun's too, and without what it does not read by default."""
    data = data_of(placements(items))
    return [item for item in items if item.entry is not None or not is_silent(item, data, tool)]


def is_silent(item: Item, data: dict[str, Any], tool: Tool) -> bool:
    """Whether a default needs neither a line in the recipe nor one in the report."""
    if item.fate == "refused":
        return False
    if item.fate == "unread" or not item.targets:
        return True
    told_anyway = item.fate == "changed" and tool.keys[item.path].convert is not None
    return not told_anyway and all(
        is_default(data, target, value) for target, value in item.targets.items()
    )


def without_repeated_defaults(items: list[Item], tool: Tool) -> list[Item]:
    """The items of a dump, which holds every key: what is titanrun's default too need not be written."""
    data = data_of(placements(items))
    items = [
        replace(item, targets={}, words=SAME) if repeats_default(item, data) else item
        for item in items
    ]
    return [
        replace(item, targets={})
        if item.fate == "unread" and item.value == default_value(item, tool)
        else item
        for item in items
    ]


def default_value(item: Item, tool: Tool) -> Any:
    """The program's default."""
    return tool.keys[item.path].default if item.path in tool.keys else None


def repeats_default(item: Item, data: dict[str, Any]) -> bool:
    """Whether a written key says what holds anyway."""
    return item.fate == "mapped" and all(
        is_default(data, target, value) for target, value in item.targets.items()
    )
