"""Writes schemas/*.schema.json, or with --check says whether they are fresh."""

import sys
from pathlib import Path

from titanrun.recipe.schemas.all_schemas import SCHEMAS, format_schema, get_schema_file_name

FOLDER = Path(__file__).parents[1] / "schemas"


def main() -> int:
    """0 when the files are written, or fresh under --check."""
    wanted = {FOLDER / get_schema_file_name(name): format_schema(name) for name in SCHEMAS}
    if "--check" in sys.argv[1:]:
        stale = [
            path
            for path, text in wanted.items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
        for path in [*stale, *(path for path in FOLDER.iterdir() if path not in wanted)]:
            print(f"{path} is stale: run python tools/write_schemas.py", file=sys.stderr)
        return 1 if stale or any(path not in wanted for path in FOLDER.iterdir()) else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
