"""Compare what CI ran with what it was to run.

    ci_report.py FOLDER GAPS               print and judge the parts recorded in FOLDER
    ci_report.py --durations FILE...       write tests/durations.json from outcome files

FOLDER holds one `<part>.status` file for each part of CI (`passed`, or `left out: <why>`) and
`<part>.json` with the outcomes of its tests (see tests/outcomes.py). GAPS lists what may be
skipped or left out, a line each: `PATTERN  # why`. A pattern is a shell pattern for the name of a
part or the id of a test; a part includes its unfinished tests. Exit with 1 if anything else was
skipped, unfinished or left out, or if a test failed.
"""

import json
import sys
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

DURATIONS = Path(__file__).parents[1] / "tests" / "durations.json"
# shorter files are not worth an entry
MIN_SECONDS = 5.0


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    match arguments:
        case ["--durations", *files] if files:
            write_durations([Path(file) for file in files])
            return 0
        case [folder, gaps]:
            return report(Path(folder), read_gaps(Path(gaps)))
    print(__doc__, file=sys.stderr)
    return 2


def read_gaps(path: Path) -> list[str]:
    """Return the patterns of what may be left out. Raise ValueError for one without a reason."""
    patterns = []
    for line in path.read_text(encoding="utf-8").splitlines():
        pattern, _, reason = line.partition("  # ")
        if not line.strip() or line.startswith("#"):
            continue
        if not reason.strip():
            raise ValueError(f"{path}: no reason for {pattern}")
        patterns.append(pattern.strip())
    return patterns


def report(folder: Path, patterns: list[str]) -> int:
    """Print every part, skipped and unfinished test; return 1 if one is not in `patterns`."""
    bad = 0
    for status in sorted(folder.glob("*.status")):
        text = status.read_text(encoding="utf-8").strip()
        counts = ""
        gaps: dict[str, str] = {}
        if text != "passed":
            gaps[status.stem] = text
        record = status.with_suffix(".json")
        if record.exists():
            data = json.loads(record.read_text(encoding="utf-8"))
            outcomes = list(data["outcomes"].values())
            counts = ", ".join(
                f"{outcomes.count(kind)} {kind}"
                for kind in ("passed", "failed", "skipped")
                if kind in outcomes
            )
            gaps |= {name: f"skipped: {why}" for name, why in data["skipped"].items()}
            gaps |= dict.fromkeys(data["unfinished"], "unfinished")
            failed = [name for name, kind in data["outcomes"].items() if kind == "failed"]
            gaps |= dict.fromkeys(failed, "failed")
        print(f"{status.stem}: {text}" + (f" ({counts})" if counts else ""))
        if text != "passed" and is_listed(status.stem, patterns):
            late = [name for name, what in gaps.items() if what == "unfinished"]
            gaps = {name: what for name, what in gaps.items() if what != "unfinished"}
            print(f"  listed: {len(late)} tests unfinished, the first: {', '.join(late[:3])}")
        for name, what in gaps.items():
            listed = what != "failed" and is_listed(name, patterns)
            bad += not listed
            print(f"  {'listed' if listed else 'NOT LISTED'}: {name}: {what}")
    if bad:
        print(f"{bad} parts or tests did not run and are not in the list of gaps")
    return int(bad > 0)


def is_listed(name: str, patterns: list[str]) -> bool:
    """Return whether a part or a test may be left out."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def write_durations(files: list[Path]) -> None:
    """Write the seconds of each test file into tests/durations.json."""
    totals: dict[str, float] = defaultdict(float)
    for file in files:
        for name, seconds in json.loads(file.read_text(encoding="utf-8"))["seconds"].items():
            totals[name.split("::")[0]] += seconds
    kept = {name: round(total) for name, total in sorted(totals.items()) if total >= MIN_SECONDS}
    DURATIONS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
