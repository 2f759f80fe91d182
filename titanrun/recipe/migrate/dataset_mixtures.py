"""Several datasets of a program's configuration as one mixture.

Each dataset is migrated alone, by the same tables. What becomes of `training.dataset` is then a
source of the mixture.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from titanrun.config.type_introspection import find_config_class
from titanrun.recipe.migrate.migration_plan import MigrationItem, iter_placements
from titanrun.recipe.migrate.source_entries import SourceEntries, SourceEntry
from titanrun.recipe.migrate.target_paths import TargetPath, build_recipe_data
from titanrun.recipe.migrate.toml_comments import NO_COMMENTS
from titanrun.recipe.migrate.yaml_entries import SEVERAL
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.reference.file_layouts import OF_MIXTURE, ONE_DATASET
from titanrun.recipe.reference.source_weights import weigh_sources

SECTION: TargetPath = ("training", "dataset")
SOURCES: TargetPath = (*SECTION, "sources")
NAME: TargetPath = (*SECTION, "name")
HUB_FIELDS = ("repo", "subset", "split", "revision")
PACKED_ROWS = "max_rows counts packed sequences, of several conversations each"


def split_dataset_list(written: SourceEntries, key: str) -> list[SourceEntries]:
    """Return the configuration with each mapping of the list `key` alone, under the first's path.

    Return an empty list if there are not several.
    """
    pattern = re.compile(rf"{re.escape(key)}\[(\d+)\](.*)")
    places = {
        entry.written_path: (int(match[1]), match[2])
        for entry in written.entries
        if (match := pattern.fullmatch(entry.written_path))
    }
    numbers = sorted({number for number, _ in places.values()})
    return [
        replace(written, entries=tuple(select_dataset(written, key, places, number)))
        for number in numbers
        if len(numbers) > 1
    ]


def select_dataset(
    written: SourceEntries, key: str, places: Mapping[str, tuple[int, str]], number: int
) -> list[SourceEntry]:
    """Return the entries without the datasets of other numbers."""
    kept = []
    for entry in written.entries:
        at, rest = places.get(entry.written_path, (number, None))
        if at == number and rest is not None:
            kept.append(
                replace(entry, path=f"{key}{rest}", refused="" if number else entry.refused)
            )
        elif at == number:
            kept.append(entry)
    return kept


def split_dataset_names(written: SourceEntries, key: str, limit: str) -> list[SourceEntries]:
    """Return the configuration with each name in the text or list at `key` alone.

    Return an empty list if there is one, and no number of records at the key `limit`.
    """
    entry = next((entry for entry in written.entries if entry.path == key), None)
    value = entry.value if entry is not None else None
    parts = value if isinstance(value, list) else str(value or "").split(",")
    names = [str(part).strip() for part in parts if str(part).strip()]
    return [
        replace(
            written,
            entries=tuple(
                replace(other, value=name) if other is entry else other for other in written.entries
            ),
        )
        for name in names
        if len(names) > 1 or any(has_limit(other, limit) for other in written.entries)
    ]


def has_limit(entry: SourceEntry, limit: str) -> bool:
    """Return whether an entry is a number of records to read of each dataset."""
    is_number = isinstance(entry.value, int) and not isinstance(entry.value, bool)
    return bool(limit) and entry.path == limit and is_number and entry.value > 0


def mix_datasets(
    written: SourceEntries, migrated: Sequence[Sequence[MigrationItem]], limit: str
) -> list[MigrationItem]:
    """Return the items of the whole configuration, from those of each of its datasets.

    Return an empty list if one of the datasets cannot be carried over.

    Args:
        written: Entries of the whole configuration.
        migrated: Items for each dataset alone.
        limit: Key of the number of records to read of each dataset, empty if there is none.
    """
    originals = {entry.written_path: entry for entry in written.entries}
    limits = [entry.value for entry in written.entries if has_limit(entry, limit)]
    cap = {"max_rows": limits[-1]} if limits else {}
    sources = [{"dataset": section, **cap} for items in migrated if (section := get_section(items))]
    if len(sources) < len(migrated) or any(map(has_refused_dataset, migrated)):
        return []
    weights, shares = weigh_sources(sources)
    if weights:
        pairs = zip(sources, weights, strict=True)
        sources = [{**source, "weight": weight} for source, weight in pairs]
    own = [path.written_path for path in written.entries]
    known: set[str] = set()
    mixed: list[MigrationItem] = []
    for items in migrated:
        for item in items:
            name = item.entry.written_path if item.entry else ""
            if name in known or (not name and mixed and items is not migrated[0]):
                continue
            known |= {name} if name in own else set()
            entry = originals.get(name)
            whole = item if entry is None else replace(item, entry=entry)
            if entry is not None and entry.path == item.path:
                whole = replace(whole, value=entry.value)
            is_cap = bool(cap) and whole.path == limit
            mixed.append(
                limit_sources(whole, sources) if is_cap else to_mixture(whole, sources, shares)
            )
    return mixed


def tell_left_datasets(
    written: SourceEntries,
    items: Sequence[MigrationItem],
    migrated: Sequence[Sequence[MigrationItem]],
) -> list[MigrationItem]:
    """Return the items of a configuration of which only the first dataset is carried over.

    Every other one is refused, with what is wrong with it alone.

    Args:
        written: Entries of the whole configuration.
        items: Items of the whole configuration, with its first dataset.
        migrated: Items for each dataset alone.
    """
    advice = describe_left_datasets(get_section(items))
    others = [item for alone in migrated[1:] for item in alone if item.entry is not None]
    own = {
        (item.entry.written_path, str(item.value)): item.words
        for item in others
        if item.entry is not None and item.outcome == "refused"
    }

    def refuse(item: MigrationItem, entry: SourceEntry) -> MigrationItem:
        reason = own.get((entry.written_path, str(item.value)))
        words = "; ".join(filter(None, [reason, advice]))
        return replace(item, outcome="refused", targets={}, words=words, entry=entry)

    values = {entry.written_path: entry.value for entry in written.entries}
    told = [
        refuse(item, item.entry) if item.entry and item.entry.refused == SEVERAL else item
        for item in items
    ]
    # names in one text or list have one entry
    return told + [
        refuse(item, replace(item.entry, comments=NO_COMMENTS))
        for item in others
        if item.entry and item.entry.value != values.get(item.entry.written_path, item.entry.value)
    ]


def describe_left_datasets(section: dict[str, Any]) -> str:
    """Return what to do about the datasets beside the first, whose section it is."""
    data = {"training": {"dataset": section}}
    kind = find_config_class(Recipe, data, SECTION)
    if getattr(kind, "compares", None) is None:
        return SEVERAL
    hub = [field for field in HUB_FIELDS if field in section]
    return f"{ONE_DATASET} instead of {', '.join(hub)}" if hub else ONE_DATASET


def limit_sources(item: MigrationItem, sources: list[dict[str, Any]]) -> MigrationItem:
    """Return the item of the number of records as part of the sources."""
    is_packed = any(source["dataset"].get("packing") for source in sources)
    return replace(
        item,
        outcome="changed" if is_packed else "mapped",
        targets={SOURCES: sources},
        words=PACKED_ROWS if is_packed else "",
    )


def get_section(items: Sequence[MigrationItem]) -> dict[str, Any]:
    """Return the dataset that the items describe, its name first, without what mixtures set."""
    section = build_recipe_data(iter_placements(items)).get("training", {}).get("dataset")
    if not isinstance(section, dict) or "name" not in section:
        return {}
    rest = {key: value for key, value in section.items() if key not in (*OF_MIXTURE, "name")}
    return {"name": section["name"], **rest}


def has_refused_dataset(items: Sequence[MigrationItem]) -> bool:
    """Return whether the dataset itself is refused, and kept because a recipe needs one."""
    return any(
        item.outcome == "refused" and any(belongs_to_dataset(target) for target in item.targets)
        for item in items
    )


def belongs_to_dataset(target: TargetPath) -> bool:
    """Return whether a target is a setting of one dataset."""
    return target[:2] == SECTION and target[2:3] not in [(key,) for key in OF_MIXTURE]


def to_mixture(item: MigrationItem, sources: list[dict[str, Any]], shares: str) -> MigrationItem:
    """Return an item whose settings of a dataset are the sources of the mixture.

    Args:
        item: Item of one of the datasets alone.
        sources: Sources of the mixture.
        shares: What their shares are.
    """
    kept = {
        target: value for target, value in item.targets.items() if not belongs_to_dataset(target)
    }
    if len(kept) == len(item.targets):
        return item
    if item.outcome == "unread":
        return replace(item, targets=kept)
    if NAME not in item.targets:
        return replace(item, targets={SOURCES: sources, **kept})
    words = "; ".join(filter(None, [item.words, shares if len(sources) > 1 else ""]))
    targets = {NAME: "mixture", SOURCES: sources, **kept}
    return replace(item, targets=targets, outcome="changed" if words else "mapped", words=words)
