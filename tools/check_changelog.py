"""Check CHANGELOG.md, of the form of Keep a Changelog 1.1.0.

Versions, dates, groups, and the sections of releases, which never change again.

Usage: python tools/check_changelog.py            print the faults
       python tools/check_changelog.py --freeze   record the sections of new releases first
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
# a line for each release: its version and the SHA-256 of its section
RELEASED = ROOT / "tools" / "released_sections.txt"
UNRELEASED = "[Unreleased]"
MAX_COLUMNS = 150
GROUPS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
RELEASE = re.compile(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})")


class Section(NamedTuple):
    """A section of the changelog."""

    title: str
    text: str

    @property
    def version(self) -> str | None:
        """Version of a release, None if nothing is released or the title is wrong."""
        found = RELEASE.fullmatch(self.title)
        return found[1] if found else None

    @property
    def digest(self) -> str:
        """SHA-256 of title and text, without spaces at the ends."""
        return hashlib.sha256(f"{self.title}\n{self.text.strip()}".encode()).hexdigest()


def split_sections(text: str) -> list[Section]:
    """Return the sections of a changelog, newest first."""
    parts = re.split(r"^## +(.*?) *$", text, flags=re.MULTILINE)[1:]
    return [Section(*part) for part in zip(parts[::2], parts[1::2], strict=True)]


def find_faults(text: str, released: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with a changelog.

    Args:
        text: Content of the file.
        released: Digest of the section of each released version.
    """
    sections = split_sections(text)
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MAX_COLUMNS:
            yield f"line {number} has {len(line)} columns, at most {MAX_COLUMNS} are allowed"
    if not sections or sections[0].title != UNRELEASED:
        yield f"the first section is not {UNRELEASED}"
    for section in sections:
        if section.title != UNRELEASED:
            yield from find_release_faults(section, released)
        yield from find_group_faults(section)
    versions = [section.version for section in sections if section.version]
    for version in sorted({one for one in versions if versions.count(one) > 1}):
        yield f"{version} has several sections"
    for version in sorted(released.keys() - set(versions)):
        yield f"the section of {version}, which was released, is gone"
    releases = [found for one in sections if (found := RELEASE.fullmatch(one.title))]
    for newer, older in pairwise(releases):
        if parse_version(newer[1]) < parse_version(older[1]) or newer[2] < older[2]:
            yield f"{newer[1]} ({newer[2]}) stands above {older[1]} ({older[2]})"


def find_release_faults(section: Section, released: dict[str, str]) -> Iterator[str]:
    """Yield what is wrong with the title of a release, and whether its text has changed."""
    found = RELEASE.fullmatch(section.title)
    if found is None:
        yield f"'{section.title}' is not '[MAJOR.MINOR.PATCH] - YYYY-MM-DD'"
        return
    try:
        date.fromisoformat(found[2])
    except ValueError:
        yield f"{found[1]}: there is no day {found[2]}"
    if found[1] not in released:
        yield f"the section of {found[1]} is not recorded: run tools/check_changelog.py --freeze"
    elif released[found[1]] != section.digest:
        yield f"the section of {found[1]} has changed since its release"


def find_group_faults(section: Section) -> Iterator[str]:
    """Yield unknown, repeated and misplaced groups of a section, and empty ones."""
    before, *groups = re.split(r"^### +(.*?) *$", section.text, flags=re.MULTILINE)
    if re.search(r"^- ", before, flags=re.MULTILINE):
        yield f"{section.title}: an entry stands before the first group"
    names = groups[::2]
    for name in names:
        if name not in GROUPS:
            yield f"{section.title}: unknown group '{name}', known are {', '.join(GROUPS)}"
    known = [GROUPS.index(name) for name in names if name in GROUPS]
    if known != sorted(set(known)):
        yield f"{section.title}: groups are repeated or not in the order {', '.join(GROUPS)}"
    for name, text in zip(names, groups[1::2], strict=True):
        if not re.search(r"^- ", text, flags=re.MULTILINE):
            yield f"{section.title}: nothing stands under '{name}'"


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    return tuple(map(int, version.split(".")))


def read_released(path: Path) -> dict[str, str]:
    """Return the recorded digests, none if no version has been released."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(line.split() for line in lines)


def freeze_sections(text: str, path: Path) -> None:
    """Record the sections of releases that are not recorded yet."""
    released = read_released(path)
    for section in reversed(split_sections(text)):
        if section.version:
            released.setdefault(section.version, section.digest)
    if released:
        lines = (f"{version} {digest}\n" for version, digest in released.items())
        path.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    """Print the faults, and return 1 if there are any."""
    text = CHANGELOG.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--freeze"]:
        freeze_sections(text, RELEASED)
    elif sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    faults = [f"CHANGELOG.md: {fault}" for fault in find_faults(text, read_released(RELEASED))]
    print("".join(f"{fault}\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
