"""Hints about a path that does not exist: names that are close to it, and how it is read."""

import re
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from pathlib import Path

from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import find_closest, format_word_list, is_other_number

PATTERN_CHARACTERS = "*?["
ADDRESS_MARK = "://"
NUMBER = re.compile(r"\d+")
VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
BRACES = re.compile(r"\{([^{}]*,[^{}]*|\d+\.\.\d+)\}")
"""Alternatives in a path, as a shell writes them: {a,b} and {00..15}."""
SINGLE_FILE_SUFFIX = ".npy"
SPECIAL_MARKS = ("{", "}", ",", "://")
"""What the alternatives of a path in braces cannot have."""
MAX_ALTERNATIVES = 8
"""Paths that a hint joins in braces."""
MAX_NUMBERS = 100_000
"""Numbers that a range may stand for."""


def explain_missing_path(named: str) -> str:
    """Return a hint for a file, folder or glob that does not exist."""
    alternatives = expand_braces(named)
    absent = next((one for one in alternatives if not has_match(one)), None)
    if len(alternatives) > 1 and absent is not None:
        return f"there is no '{absent}': {explain_missing_path(absent)}"
    several = split_existing_paths(named)
    joined = join_in_braces(several) if several else None
    if joined is not None:
        return f"write {to_flow_yaml(joined)}"
    if VARIABLE.search(named):
        written = VARIABLE.sub(r"${env:\1}", named)
        return f'variables of a shell are not expanded: write "{written}"'
    if "\\" in named and has_match(named.replace("\\", "/")):
        return f"write {to_flow_yaml(named.replace(chr(92), '/'))}"
    near = suggest_near_path(named)
    if near is not None:
        return near
    if named.startswith("~/"):
        return f"~ is not expanded: write {Path.home()}{named[1:]}"
    missing = find_missing_part(Path(named))
    numbered = [] if missing is None else list_other_numbers(missing)
    if missing is not None and numbered:
        return f"'{missing.parent}' has {format_word_list(numbered, conjunction='and')}"
    if Path(named).is_absolute() and missing is not None:
        return f"'{missing.parent}' has no '{missing.name}'"
    return f"paths are relative to {Path.cwd()}"


def split_existing_paths(named: str) -> list[str]:
    """Return the existing paths that a text lists by commas or spaces, none if one is missing."""
    paths = [part for part in re.split(r"[,;\s]+", named) if part]
    return paths if len(paths) > 1 and all(Path(path).exists() for path in paths) else []


def is_pattern(named: str) -> bool:
    """Return whether a path may name several files: a glob pattern, or alternatives in braces."""
    has_alternatives = BRACES.search(named) is not None
    return has_alternatives or any(character in named for character in PATTERN_CHARACTERS)


def expand_braces(named: str) -> list[str]:
    """Return the paths that a path with alternatives in braces stands for, itself without any.

    A name that exists with its braces is itself.
    """
    found = BRACES.search(named)
    words = [] if found is None else list_alternatives(found[1])
    if found is None or not words or Path(named).exists():
        return [named]
    begin, end = named[: found.start()], named[found.end() :]
    expanded = (path for word in words for path in expand_braces(f"{begin}{word}{end}"))
    return list(dict.fromkeys(expanded))


def join_in_braces(paths: Sequence[str]) -> str | None:
    """Return one path with what differs in braces, None of many paths, or if they do not allow it.

    Braces are for files of this machine, and not for datasets that read one file alone.
    """
    first = paths[0]
    if len(set(paths)) == 1:
        return first
    is_single = any(Path(path).suffix == SINGLE_FILE_SUFFIX for path in paths)
    special = any(mark in path for path in paths for mark in SPECIAL_MARKS)
    if is_single or special or len(paths) > MAX_ALTERNATIVES:
        return None
    begin = re.sub(r"\w+$", "", commonprefix(paths))  # noqa: RUF071
    rests = [path.removeprefix(begin) for path in paths]
    last = commonprefix([rest[::-1] for rest in rests])[::-1]  # noqa: RUF071
    end = re.sub(r"^[^./]*", "", last)
    return f"{begin}{{{','.join(rest.removesuffix(end) for rest in rests)}}}{end}"


def list_alternatives(inner: str) -> list[str]:
    """Return the words between braces: those between commas, or the numbers of a range."""
    if "," in inner:
        return inner.split(",")
    first, _, last = inner.partition("..")
    if int(last) - int(first) >= MAX_NUMBERS:
        return []
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]


def has_match(pattern: str) -> bool:
    """Return whether a file, a folder or a glob pattern matches, as every alternative in braces."""
    return all(
        Path(one).exists() or any(True for _ in iter_matches(one)) for one in expand_braces(pattern)
    )


def iter_matches(pattern: str) -> Iterator[Path]:
    """Yield the paths that match a glob pattern."""
    path = Path(pattern)
    yield from Path(path.anchor).glob(str(path.relative_to(path.anchor)))


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


def list_other_numbers(missing: Path) -> list[str]:
    """Return the names beside a missing one that differ from it by their number, in order."""
    try:
        names = list_names(missing.parent, only_folders=False)
    except OSError:
        return []
    form = NUMBER.sub("#", missing.name)
    others = [name for name in names if "#" in form and NUMBER.sub("#", name) == form]
    return sorted(others, key=lambda name: [int(part) for part in NUMBER.findall(name)])


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
