"""Writes what is made from the code: docs/reference.md, docs/migration.md, and what settings like torchtitan's shipped ones become
today, so that a change shows in review; with --check says whether all of it is fresh."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from titanrun.recipe.migrate.document import document
from titanrun.recipe.migrate.report import report
from titanrun.recipe.migrate.torchtitan import migrate
from titanrun.recipe.reference import reference

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "tests" / "recipe" / "migrate" / "torchtitan"


def main() -> int:
    """0 when the files are written, or fresh under --check."""
    texts = {path: write() for path, write in pages().items()}
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path} is stale: run python tools/write_reference.py", file=sys.stderr)
        return 1 if stale else 0
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[Path, Callable[[], str]]:
    """What writes each file."""
    docs = {ROOT / "docs" / "reference.md": reference, ROOT / "docs" / "migration.md": document}
    return {**docs, **{file.with_suffix(".txt"): partial(migrated, file) for file in sorted(SETTINGS.glob("*.toml"))}}


def migrated(file: Path) -> str:
    """The recipe that a setting becomes, and the report."""
    migration = migrate(str(file), recipe="recipe.yaml", head=(f"# Migrated from torchtitan's {file.name} by titanrun migrate.",))
    return f"{migration.text}\n===== report, exit code {migration.exit_code} =====\n{report(migration, file.name)}"


if __name__ == "__main__":
    sys.exit(main())
