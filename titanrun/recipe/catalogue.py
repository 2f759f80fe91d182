"""The recipes that ship: beside the package in a clone, inside it in an installed wheel."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.config.suggest import closest, listing

SHIPPED = "shipped"
PACKAGE = Path(__file__).parents[1]
HEADER_KEYS = ("purpose", "model", "method", "devices", "memory")
WORD = re.compile(r"[\w.+-]+")
HEADER = re.compile(r"#\s*([a-z]+):\s*(.+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One shipped recipe, with the `# key: text` lines at its top by key."""

    name: str
    path: Path
    header: dict[str, str]

    def matches(self, wanted: Mapping[str, str]) -> bool:
        """Whether each wanted text is in the header: numbers as they are, words by their beginning, in any case and order."""
        return all(is_told(text, self.header.get(key, "")) for key, text in wanted.items())


def folder() -> Path:
    """Where the shipped recipes are."""
    installed = PACKAGE / "shipped" / "recipes"
    return installed if installed.is_dir() else PACKAGE.parent / "recipes"


def shelves() -> dict[str, Path]:
    """`extends: shipped:parts/fp32.yaml` names a file that ships, wherever titanrun is installed."""
    return {SHIPPED: folder()}


def shipped() -> list[Entry]:
    """All shipped recipes by name, those of a folder with its name in front; the fragments in parts/ are none."""
    names = {
        path: path.relative_to(folder()).as_posix()
        for path in folder().rglob("*")
        if path.suffix in (".yaml", ".toml")
    }
    kept = sorted(
        (name.count("/"), name, path)
        for path, name in names.items()
        if not name.startswith("parts/")
    )
    return [Entry(name, path, header(path)) for _, name, path in kept]


def is_told(wanted: str, text: str) -> bool:
    """Whether every word of `wanted` is one of the text's; "llama" is llama3, but "8" is not 80."""
    words = WORD.findall(text.lower())
    return all(
        any(word == found if word.isdigit() else found.startswith(word) for found in words)
        for word in WORD.findall(wanted.lower())
    )


def schema_file() -> Path:
    """The JSON Schema of recipes that ships."""
    return folder().parent / "schemas" / "recipe.schema.json"


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
        if {entry.name, entry.path.name} & {name, name + suffix}:
            return entry
    meant = closest(name, [entry.path.stem for entry in entries])
    known = listing([entry.name for entry in entries], last="and", most=99)
    raise fail(
        "unknown-name",
        f"no recipe '{name}' ships",
        help=f"did you mean '{meant}'?" if meant else f"shipped: {known}",
    )
