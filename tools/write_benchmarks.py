"""Write the measured part of the section GPU of benchmarks/README.md, from benchmarks/gpu/.

    write_benchmarks.py          write it
    write_benchmarks.py --check  exit code 1 if it is stale

A folder of benchmarks/gpu/ holds the results of one call: what `tools/bench gpu --out` wrote.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- begin: tools/write_benchmarks.py -->", "<!-- end -->"
NOTHING = "Not measured yet.\n"
HEAD = (
    "| row | ms | tokens/s | TFLOP/s | causal | bf16 peak | host | of the bare loop | "
    "of the ceiling | GiB | verdict |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def build_section(results: Path) -> str:
    """Build the text of all calls, by the names of their folders."""
    calls = sorted(file.parent for file in results.glob("*/table.json"))
    return "\n".join(build_call(folder) for folder in calls) or NOTHING


def build_call(folder: Path) -> str:
    """Build the table of one call, and what it ran on."""
    table: list[dict[str, Any]] = json.loads((folder / "table.json").read_text())
    clocks = json.loads((folder / "clocks.json").read_text())
    versions = sorted({side["torch"] for row in table for side in iter_sides(row)})
    device = (clocks["before"] or "no GPU").strip().splitlines()[-1]
    lines = [f"### {folder.name}", "", f"{device}; torch {', '.join(versions)}.", "", HEAD]
    return "\n".join([*lines, *map(build_line, table), ""])


def iter_sides(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sides of a row that got as far as to know their torch."""
    sides = (row.get(name) for name in ("titanrun", "bare"))
    return (side for side in sides if side and "torch" in side)


def build_line(row: dict[str, Any]) -> str:
    """Build the line of a row; what was not measured, or is void, stays empty."""
    is_void = row["verdict"].startswith("VOID")
    ours = {} if is_void else row.get("titanrun", {})
    verdict = row["verdict"].replace("|", "/")
    cells = [
        row["row"],
        format_number(ours.get("ms"), ",.2f"),
        format_number(ours.get("tokens_per_second"), ",.0f"),
        format_number(ours.get("tflops"), ".1f"),
        format_number(ours.get("tflops_causal"), ".1f"),
        format_number(ours.get("mfu"), ".1%"),
        format_number(ours.get("host_share"), ".0%"),
        format_number(row.get("ratio"), ".3f"),
        format_number(None if is_void else row.get("ceiling_share"), ".2f"),
        format_number(ours.get("max_allocated", 0) / 2**30 or None, ".1f"),
        f"**{verdict}**" if is_void else verdict,
    ]
    return f"| {' | '.join(cells)} |"


def format_number(value: float | None, spec: str) -> str:
    """Format a number, or nothing."""
    return "" if value is None else format(value, spec)


def renew_page(text: str, section: str) -> str:
    """Return the page with another section between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section.strip()}\n{END}{after}"


def main(root: Path = ROOT) -> int:
    """Write the page, or compare it."""
    page = root / "benchmarks" / "README.md"
    text = page.read_text(encoding="utf-8")
    renewed = renew_page(text, build_section(root / "benchmarks" / "gpu"))
    if "--check" in sys.argv[1:]:
        if renewed != text:
            print(f"{page} is stale: run python tools/write_benchmarks.py")
        return int(renewed != text)
    page.write_text(renewed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
