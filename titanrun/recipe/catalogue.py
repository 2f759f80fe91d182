"""The recipes that ship: beside the package in a clone, inside it in an installed wheel."""

import re
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.config.suggest import closest, listing

PACKAGE = Path(__file__).parents[1]
HEADER = re.compile(r"#\s*([a-z]+):\s*(.+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One shipped recipe; `purpose` is the line of its header that says what it is for."""

    name: str
    path: Path
    purpose: str


def folder() -> Path:
    """Where the shipped recipes are."""
    installed = PACKAGE / "shipped" / "recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "recipes"


def shipped() -> list[Entry]:
    """All shipped recipes by name; the fragments in parts/ are none."""
    paths = sorted(path for path in folder().iterdir() if path.suffix in (".yaml", ".toml")) if folder().is_dir() else []
    return [Entry(path.name, path, header(path).get("purpose", "")) for path in paths]


def header(path: Path) -> dict[str, str]:
    """The `# key: text` lines at the top of a recipe."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        match = HEADER.fullmatch(line)
        if match:
            found[match[1]] = match[2]
    return found


def find(name: str, *, suffix: str = ".yaml") -> Entry:
    """The shipped recipe called `name`; without a suffix the one that ends in `suffix`. Raises ProblemsFound."""
    entries = shipped()
    for entry in entries:
        if entry.name in (name, name + suffix):
            return entry
    meant = closest(name, [entry.path.stem for entry in entries])
    known = listing([entry.name for entry in entries], last="and", most=99)
    raise fail("unknown-name", f"no recipe '{name}' ships", help=f"did you mean '{meant}'?" if meant else f"shipped: {known}")
