"""Writes docs/reference.md, or with --check says whether it is fresh."""

import sys
from pathlib import Path

from titanrun.recipe.reference import reference

TARGET = Path(__file__).parents[1] / "docs" / "reference.md"


def main() -> int:
    """0 when the file is written, or fresh under --check."""
    text = reference()
    if "--check" in sys.argv[1:]:
        fresh = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
        if not fresh:
            print(f"{TARGET} is stale: run python tools/write_reference.py", file=sys.stderr)
        return 0 if fresh else 1
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
