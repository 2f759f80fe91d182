"""Writes what is made from the code: docs/reference.md, docs/components.md, docs/migration*.md, docs/commands.md and docs/commands/,
and what settings like those that torchtitan and others ship become today, so that a change shows in review; with --check says whether
all is fresh."""

import io
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

from components_page import components_page

from titanrun.cli.command_docs import index
from titanrun.cli.main import COMMANDS
from titanrun.recipe.migrate.document import document
from titanrun.recipe.migrate.guide import guide
from titanrun.recipe.migrate.migration import migrate
from titanrun.recipe.migrate.programs import PROGRAMS
from titanrun.recipe.migrate.report import report
from titanrun.recipe.reference import reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = ROOT / "tests" / "recipe" / "migrate"


def pages() -> dict[Path, str]:
    """The text of every generated file."""
    commands = {DOCS / "commands" / f"{name}.md": page(name) for name in COMMANDS}
    settings = {
        file.with_suffix(".txt"): migrated(file)
        for program in PROGRAMS
        for file in files_of(program)
    }
    tables = {
        DOCS / "reference.md": reference(),
        DOCS / "migration.md": document(),
        DOCS / "commands.md": index(COMMANDS),
    }
    tables[DOCS / "components.md"] = components_page()
    tables |= {
        DOCS / f"migration_{name}.md": guide(PROGRAMS[name]) for name in ("torchtune", "axolotl")
    }
    return {**tables, **commands, **settings}


def files_of(program: str) -> list[Path]:
    """The settings of a program that the tests have."""
    return sorted(
        file for file in (SETTINGS / program).glob("*.*") if file.suffix in (".toml", ".yaml")
    )


def page(command: str) -> str:
    """The page of one command, from its parser."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        import_module(f"titanrun.cli.{command.replace('-', '_')}").run(["--help-markdown"])
    return said.getvalue()


def migrated(file: Path) -> str:
    """The recipe that a setting of another program becomes, and the report."""
    program = file.parent.name
    head = (f"# Migrated from {program}'s {file.name} by titanrun migrate.",)
    migration = migrate(str(file), PROGRAMS[program], recipe="recipe.yaml", head=head)
    return f"{migration.text}\n===== report, exit code {migration.exit_code} =====\n{report(migration, file.name)}"


def main() -> int:
    """0 when the files are written, or fresh under --check."""
    wanted = pages()
    left_over = [path for path in (DOCS / "commands").glob("*.md") if path not in wanted]
    if "--check" in sys.argv[1:]:
        stale = [
            path
            for path, text in wanted.items()
            if not path.is_file() or path.read_text(encoding="utf-8") != text
        ]
        for path in [*stale, *left_over]:
            print(f"{path} is stale: run python tools/write_reference.py", file=sys.stderr)
        return 1 if stale or left_over else 0
    (DOCS / "commands").mkdir(parents=True, exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    for path in left_over:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
