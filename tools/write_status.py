"""Write docs/status.md, the table of capabilities, from docs/status.toml."""

import os.path
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "status.toml"
TARGET = ROOT / "docs" / "status.md"
KEYS = {"area", "capability", "state", "proved_on", "page", "test"}
STATES = ("works", "written, never run", "absent", "decided against")
HEAD = """# Status

What titanrun can do, and what each capability was tested on. Nothing has been run on a GPU yet.
"Gloo ranks" are several processes on one CPU machine. A setting whose feature is absent accepts
only its default, so that it cannot be used by accident.

| state | meaning |
|---|---|
| works | tests pass on what the third column names, and nothing more is claimed |
| written, never run | the code exists, and no test has run it on what it was written for |
| absent | not implemented |
| decided against | will not be implemented; the recipe key is rejected with the reason |

This page is written by `tools/write_status.py` from `docs/status.toml`.
"""


def load_capabilities(source: Path = SOURCE) -> list[dict[str, Any]]:
    """Read the entries.

    Raises:
        ValueError: An entry lacks a key, has an unknown one or an unknown state, names a file that
            does not exist, or claims to work without a test.
    """
    entries: list[dict[str, Any]] = tomllib.loads(source.read_text(encoding="utf-8"))["capability"]
    for entry in entries:
        name = entry.get("capability", entry)
        if set(entry) != KEYS:
            raise ValueError(f"{name}: keys differ: {sorted(KEYS ^ set(entry))}")
        if entry["state"] not in STATES:
            raise ValueError(f"{name}: unknown state {entry['state']!r}")
        if entry["state"] == "works" and not (entry["test"] and entry["proved_on"]):
            raise ValueError(f"{name}: works, but has no test or nothing that it was tested on")
        missing = [path for path in (entry["page"], *entry["test"]) if not (ROOT / path).is_file()]
        if missing:
            raise ValueError(f"{name}: no such file: {', '.join(missing)}")
    return entries


def build_page(entries: list[dict[str, Any]]) -> str:
    """Build the page: a table for each area, in the order of the entries."""
    lines = [HEAD]
    for area in dict.fromkeys(entry["area"] for entry in entries):
        lines += [
            f"## {area}",
            "",
            "| capability | state | tested on, and by |",
            "|---|---|---|",
        ]
        lines += [_format_row(entry) for entry in entries if entry["area"] == area]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _format_row(entry: dict[str, Any]) -> str:
    page = os.path.relpath(entry["page"], "docs")
    tests = [f"`{path.removeprefix('tests/')}`" for path in entry["test"]]
    tested = "<br>".join([entry["proved_on"], *tests])
    capability = f"{entry['capability']} ([page]({page}))"
    return f"| {capability} | {entry['state']} | {tested} |"


def main() -> int:
    """Write the page, or return 1 under --check if it is stale."""
    text = build_page(load_capabilities())
    if "--check" in sys.argv[1:]:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TARGET} is stale: run python tools/write_status.py", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
