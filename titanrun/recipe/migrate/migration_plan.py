"""Conversion of a foreign configuration to recipe values, with the outcome of each key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from titanrun.config.suggest import find_closest
from titanrun.recipe.migrate.key_mapping import SourceKey
from titanrun.recipe.migrate.source_entries import SourceEntries, SourceEntry
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.target_paths import (
    TargetPath,
    build_recipe_data,
    find_missing_feature,
    is_recipe_default,
    is_required_target,
    parse_target,
)

ItemOutcome = Literal["mapped", "changed", "manual", "unread", "refused"]


@dataclass(frozen=True, slots=True)
class MigrationItem:
    """Outcome of one key; `entry` is None if the program's default applies."""

    path: str
    value: Any
    outcome: ItemOutcome
    targets: dict[TargetPath, Any] = field(default_factory=dict)
    words: str = ""
    entry: SourceEntry | None = None


SAME = "same as the default"
AS_IT_IS = "left out: titanrun does the same without it"
EMPTY = "left out: it has no value"
HAS_VERSION = "left out: every recipe begins with it"
NOT_BUILT = "not built in this version"


def plan_migration(written: SourceEntries, tool: SourceTool) -> list[MigrationItem]:
    """Return the outcome of every written key and differing default, in table order.

    A default differs if it is not titanrun's too.
    """
    entries: dict[str, SourceEntry] = {}
    items: list[MigrationItem] = []
    for entry in written.entries:
        before = entries.get(entry.path)
        if before is not None and entry.path != entry.written_path:
            items.append(
                MigrationItem(
                    entry.path,
                    entry.value,
                    "unread",
                    words=f"left out: '{before.written_path}' is written too",
                    entry=entry,
                )
            )
            continue
        if before is not None:
            items.append(
                MigrationItem(
                    entry.path,
                    before.value,
                    "unread",
                    words=f"left out: '{entry.written_path}' is written too",
                    entry=before,
                )
            )
        entries[entry.path] = entry
    values = {
        path: entries[path].value if path in entries else key.default
        for path, key in tool.keys.items()
    }
    for path, key in tool.keys.items():
        if path in entries or path in tool.keys_with_defaults:
            items.append(decide_outcome(key, entries.get(path), values, tool))
    items += [
        build_unknown_key_item(entry, tool)
        for path, entry in entries.items()
        if path not in tool.keys
    ]
    items += iter_implied_items(items, tool)
    items = drop_silent_defaults(reject_missing_targets(items, tool), tool)
    return drop_repeated_defaults(items, tool) if written.is_complete else items


def decide_outcome(
    key: SourceKey, entry: SourceEntry | None, values: dict[str, Any], tool: SourceTool
) -> MigrationItem:
    """Return the outcome of one key, whether or not this version has its target."""
    value = values[key.path]
    if entry is not None and entry.refused:
        return MigrationItem(key.path, value, "refused", words=entry.refused, entry=entry)
    unread = key.format_unmet_condition(values)
    converted = key.convert_value(value, values)
    targets = {parse_target(target): becomes for target, becomes in converted.targets.items()}
    if unread:
        return MigrationItem(
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
        required = {
            target: becomes for target, becomes in targets.items() if is_required_target(target)
        }
        words = converted.refused or key.how
        return MigrationItem(key.path, value, "refused", required, words, entry)
    if value is None and key.default is None and key.convert is None:
        targets = {}
    if not targets and key.outcome == "manual" and value is not None and not converted.how:
        return MigrationItem(key.path, value, "manual", words=key.how, entry=entry)
    if not targets:
        words = converted.how or (key.how if key.outcome == "unread" else AS_IT_IS)
        return MigrationItem(key.path, value, "unread", words=words, entry=entry)
    how = converted.how or ("" if key.convert else key.how)
    how = "; ".join(filter(None, [how, entry.how if entry else ""]))
    return MigrationItem(key.path, value, "changed" if how else "mapped", targets, how, entry)


def build_unknown_key_item(entry: SourceEntry, tool: SourceTool) -> MigrationItem:
    """Return the refusal of a key that the program does not have.

    The version of a recipe is none of a program: someone began to turn the file into a recipe.
    """
    if entry.path == "version":
        return MigrationItem("version", entry.value, "unread", words=HAS_VERSION, entry=entry)
    if entry.value is None and not entry.refused:
        return MigrationItem(entry.path, None, "unread", words=EMPTY, entry=entry)
    meant = find_closest(entry.path, tool.suggested_keys or tool.keys) or find_closest_leaf(
        entry.path, tool
    )
    words = f"{tool.name} has no such key" + (f"; did you mean '{meant}'?" if meant else "")
    return MigrationItem(
        entry.path, entry.value, "refused", words=entry.refused or words, entry=entry
    )


def find_closest_leaf(path: str, tool: SourceTool) -> str | None:
    """Return the key with the same last word in another section."""
    last = path.rpartition(".")[2]
    return next((known for known in tool.keys if known.rpartition(".")[2] == last), None)


def iter_implied_items(items: list[MigrationItem], tool: SourceTool) -> Iterator[MigrationItem]:
    """Yield the program's behavior without a key if this recipe has a place for it."""
    placed = {target for item in items for target in item.targets if item.outcome != "unread"}
    data = build_recipe_data(iter_placements(items))
    for text, value, why in tool.implied_values:
        target = parse_target(text)
        holder_is_there = any(other[: len(target) - 1] == target[:-1] for other in placed)
        if (
            target not in placed
            and holder_is_there
            and not find_missing_feature(data, target, value, "")
        ):
            yield MigrationItem("", value, "mapped", {target: value}, why)


def iter_placements(items: Iterable[MigrationItem]) -> Iterator[tuple[TargetPath, Any]]:
    """Yield the values of the recipe; of a refused key those that the recipe requires."""
    for item in items:
        if item.outcome != "unread":
            yield from item.targets.items()


def reject_missing_targets(items: list[MigrationItem], tool: SourceTool) -> list[MigrationItem]:
    """Return the items, refusing those whose target this version does not have."""
    data = build_recipe_data(iter_placements(items))
    return [
        item if item.outcome in ("unread", "refused") else reject_if_missing(item, data, tool)
        for item in items
    ]


def reject_if_missing(item: MigrationItem, data: dict[str, Any], tool: SourceTool) -> MigrationItem:
    """Return the item, or its refusal if this version lacks its target.

    What a recipe requires is kept in it.
    """
    extension = tool.keys[item.path].extension if item.path in tool.keys else ""
    for target, value in item.targets.items():
        missing = find_missing_feature(data, target, value, extension)
        if not missing:
            continue
        words = f"{missing} is {NOT_BUILT}"
        if item.entry is None and target[-1] != "name":
            return replace(item, outcome="unread", targets={})
        if not is_required_target(target):
            kept = {
                other: inside
                for other, inside in item.targets.items()
                if not find_missing_feature(data, other, inside, extension)
            }
            return replace(item, outcome="refused", targets=kept, words=words)
        if target[-1] == "name":
            return replace(item, outcome="refused", words=f"{words} (kept: a recipe needs one)")
    return item


def drop_silent_defaults(items: list[MigrationItem], tool: SourceTool) -> list[MigrationItem]:
    """Return the items without unread defaults and those that equal titanrun's."""
    data = build_recipe_data(iter_placements(items))
    return [
        item for item in items if item.entry is not None or not is_silent_default(item, data, tool)
    ]


def is_silent_default(item: MigrationItem, data: dict[str, Any], tool: SourceTool) -> bool:
    """Return whether a default needs neither a line in the recipe nor one in the report."""
    if item.outcome == "refused":
        return False
    if item.outcome == "unread" or not item.targets:
        return True
    is_reported = item.outcome == "changed" and tool.keys[item.path].convert is not None
    return not is_reported and all(
        is_recipe_default(data, target, value) for target, value in item.targets.items()
    )


def drop_repeated_defaults(items: list[MigrationItem], tool: SourceTool) -> list[MigrationItem]:
    """Return the items of a dump without titanrun's defaults: a dump has every key."""
    data = build_recipe_data(iter_placements(items))
    items = [
        replace(item, targets={}, words=SAME) if repeats_default(item, data) else item
        for item in items
    ]
    return [
        replace(item, targets={})
        if item.outcome == "unread" and item.value == get_default_value(item, tool)
        else item
        for item in items
    ]


def get_default_value(item: MigrationItem, tool: SourceTool) -> Any:
    """Return the program's default."""
    return tool.keys[item.path].default if item.path in tool.keys else None


def repeats_default(item: MigrationItem, data: dict[str, Any]) -> bool:
    """Return whether a written key equals the default."""
    return item.outcome == "mapped" and all(
        is_recipe_default(data, target, value) for target, value in item.targets.items()
    )
