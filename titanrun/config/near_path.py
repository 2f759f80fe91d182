"""Hints about a path that does not exist: names that are close to it, and how it is read."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import find_closest, is_other_number

PATTERN_CHARACTERS = "*?["
ADDRESS_MARK = "://"
BRACES = re.compile(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}")
"""Alternatives that a shell expands: {a,b} and {00..15}."""


def explain_missing_path(named: str) -> str:
    """Return a hint for a file, folder or glob that does not exist."""
    if BRACES.search(named):
        return f"braces are not expanded: {suggest_for_braces(named)}"
    near = suggest_near_path(named)
    if near is not None:
        return near
    if named.startswith("~/"):
        return f"~ is not expanded: write {Path.home()}{named[1:]}"
    missing = find_missing_part(Path(named))
    if Path(named).is_absolute() and missing is not None:
        return f"'{missing.parent}' has no '{missing.name}'"
    return f"paths are relative to {Path.cwd()}"


def suggest_for_braces(named: str) -> str:
    """Return how to name the files that a path with braces means."""
    pattern = BRACES.sub(replace_braces, named)
    matches: list[Path] = []
    with suppress(OSError, ValueError):
        matches = sorted(iter_matches(pattern))
    if not matches:
        return f"nothing matches {pattern} either"
    written = to_flow_yaml(pattern)
    found = BRACES.search(named)
    if found is None or ".." in found[1] or len(BRACES.findall(named)) > 1:
        return f"write {written}"
    meant = {Path(BRACES.sub(word, named)) for word in found[1].split(",")}
    others = [path for path in matches if path not in meant]
    if not others:
        return f"write {written}"
    example = f"{len(others)} other{'s' * (len(others) > 1)}, such as {others[0].name}"
    return f"make each file a source of a mixture; {written} also matches {example}"


def is_pattern(named: str) -> bool:
    """Return whether a path is a glob pattern."""
    return any(character in named for character in PATTERN_CHARACTERS)


def has_match(pattern: str) -> bool:
    """Return whether something matches a glob pattern."""
    return any(True for _ in iter_matches(pattern))


def iter_matches(pattern: str) -> Iterator[Path]:
    """Yield the paths that match a glob pattern."""
    path = Path(pattern)
    yield from Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def replace_braces(found: re.Match[str]) -> str:
    """Return the glob of alternatives in braces."""
    return join_alternatives(found[1].split(","))


def join_alternatives(words: Sequence[str]) -> str:
    """Return a glob of words: [ab] of single letters or digits, else *."""
    if all(len(word) == 1 and word.isalnum() for word in words):
        return f"[{''.join(words)}]"
    return "*"


def suggest_near_path(named: str, *, only_folders: bool = False) -> str | None:
    """Return the question whether another path was meant, None if there is no such path."""
    near = find_near_path(named, only_folders=only_folders)
    return None if near is None else f"did you mean '{near}'?"


def find_near_path(named: str, *, only_folders: bool = False) -> str | None:
    """Return the existing path that a missing one is a misspelling of.

    Every part of it may be misspelled. Return None for patterns and addresses, and if no name is
    close.
    """
    if ADDRESS_MARK in named or is_pattern(named):
        return None
    path = Path(named)
    try:
        while (missing := find_missing_part(path)) is not None:
            is_folder = only_folders or missing != path
            names = list_names(missing.parent, only_folders=is_folder)
            near = find_near_name(missing.name, names)
            if near is None:
                return None
            path = missing.with_name(near) / path.relative_to(missing)
    except (OSError, ValueError):  # not readable, or no path
        return None
    return None if path == Path(named) else str(path)


def find_missing_part(path: Path) -> Path | None:
    """Return the first part of a path that does not exist, None if all do."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    return missing[-1] if missing else None


def list_names(folder: Path, *, only_folders: bool) -> list[str]:
    """Return the names in a folder. Those with a dot in front are of editors and systems.

    A link to nothing is left out: it is as missing as what is looked for.
    """
    return [
        entry.name
        for entry in folder.iterdir()
        if not entry.name.startswith(".") and (entry.is_dir() if only_folders else entry.exists())
    ]


def find_near_name(name: str, names: list[str]) -> str | None:
    """Return the name that is close to another one, None if none is.

    Only stems are compared where the suffixes are equal: a.jsonl is not a misspelling of b.jsonl.
    """
    suffix = Path(name).suffix
    candidates = [one for one in names if not is_other_number(name, one)]
    stems = {Path(one).stem: one for one in candidates if Path(one).suffix == suffix}
    near = find_closest(Path(name).stem, stems)
    if near is not None:
        return stems[near]
    return find_closest(name, [one for one in candidates if Path(one).suffix != suffix])
