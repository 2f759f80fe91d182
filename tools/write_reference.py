"""Writes docs/reference.md, docs/commands.md and docs/commands/, or with --check says whether they are fresh."""

import io
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

from titanrun.cli.command_docs import index
from titanrun.cli.main import COMMANDS
from titanrun.recipe.reference import reference

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[Path, str]:
    """The text of every generated page."""
    commands = {DOCS / "commands" / f"{name}.md": page(name) for name in COMMANDS}
    return {DOCS / "reference.md": reference(), DOCS / "commands.md": index(COMMANDS), **commands}


def page(command: str) -> str:
    """The page of one command, from its parser."""
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        import_module(f"titanrun.cli.{command.replace('-', '_')}").run(["--help-markdown"])
    return said.getvalue()


def main() -> int:
    """0 when the files are written, or fresh under --check."""
    wanted = pages()
    left_over = [path for path in (DOCS / "commands").glob("*.md") if path not in wanted]
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
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
