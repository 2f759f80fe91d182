"""Writes the pages that are made from the code, docs/reference.md and docs/migration.md; with --check says whether they are fresh."""

import sys
from pathlib import Path

from titanrun.recipe.migrate.document import document
from titanrun.recipe.reference import reference

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"reference.md": reference, "migration.md": document}


def main() -> int:
    """0 when the files are written, or fresh under --check."""
    texts = {DOCS / name: write() for name, write in PAGES.items()}
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path} is stale: run python tools/write_reference.py", file=sys.stderr)
        return 1 if stale else 0
    DOCS.mkdir(exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
