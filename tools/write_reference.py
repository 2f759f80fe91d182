"""Write the files that are made from the code.

docs/reference.md, docs/components.md, docs/exit_codes.md, docs/migration*.md, docs/commands.md
and docs/commands/, and what settings like those that torchtitan and others ship become today, so
that a change shows in review. With --check it says whether all is fresh.
"""

import io
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

from components_page import components_page
from titanrun.cli.command_docs import format_command_index
from titanrun.cli.main import COMMANDS
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.program_detection import PROGRAMS
from titanrun.recipe.migrate.program_guide import build_program_guide
from titanrun.recipe.migrate.torchtitan_guide import build_torchtitan_guide
from titanrun.recipe.reference.exit_code_page import build_exit_code_page
from titanrun.recipe.reference.reference_page import build_reference_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = ROOT / "tests" / "recipe" / "migrate"


def pages() -> dict[Path, str]:
    """Return the text of every generated file."""
    commands = {DOCS / "commands" / f"{name}.md": page(name) for name in COMMANDS}
    settings = {
        file.with_suffix(".txt"): migrated(file)
        for program in PROGRAMS
        for file in files_of(program)
    }
    tables = {
        DOCS / "reference.md": build_reference_page(),
        DOCS / "migration_torchtitan.md": build_torchtitan_guide(),
        DOCS / "commands.md": format_command_index(COMMANDS),
    }
    tables[DOCS / "exit_codes.md"] = build_exit_code_page()
    tables[DOCS / "components.md"] = components_page()
    tables |= {
        DOCS / f"migration_{name}.md": build_program_guide(PROGRAMS[name])
        for name in ("torchtune", "axolotl", "llamafactory")
    }
    return {**tables, **commands, **settings}


def files_of(program: str) -> list[Path]:
    """Return the settings of a program that the tests have."""
    return sorted(
        file for file in (SETTINGS / program).glob("*.*") if file.suffix in (".toml", ".yaml")
    )


def page(command: str) -> str:
    """Build the page of one command, from its parser."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        import_module(f"titanrun.cli.{command.replace('-', '_')}").run(["--help-markdown"])
    return said.getvalue()


def migrated(file: Path) -> str:
    """Return the recipe that a setting of another program becomes, and the report."""
    program = file.parent.name
    head = (f"# Migrated from {program}'s {file.name} by titanrun migrate.",)
    migration = migrate_file(
        str(file), PROGRAMS[program], recipe_name="recipe.yaml", header_lines=head
    )
    return (
        f"{migration.text}\n===== report, exit code {migration.exit_code} "
        f"=====\n{format_migration_report(migration, file.name)}"
    )


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
