"""Parts of the built page, each with what it imports, and their budgets."""

import gzip
import re
from pathlib import Path

# KB with gzip
PAGE_BUDGETS = {"shell and pages": 60, "editor": 160, "merge view": 12, "charts": 25}


def list_page_parts(static: Path) -> dict[str, set[Path]]:
    """Return the files of each part, without those that an earlier part loads."""
    shell = list_loaded(static, "main-*.js")
    editor = list_loaded(static, "editor-*.js") - shell
    return {
        "shell and pages": shell | set(static.glob("main-*.css")),
        "editor": editor,
        "merge view": list_loaded(static, "dist-*.js") - shell - editor,
        "charts": list_loaded(static, "library-*.js") - shell,
    }


def list_loaded(static: Path, pattern: str) -> set[Path]:
    """Return a file and what it imports before it runs; not what it asks for later."""
    (start,) = static.glob(pattern)
    loaded, left = {start}, [start]
    while left:
        names = re.findall(r'(?:from|import)"\./([\w-]+\.js)"', left.pop().read_text())
        new = {static / name for name in names} - loaded
        loaded |= new
        left += new
    return loaded


def compress_files(files: set[Path]) -> float:
    """Return the size of files in KB, each compressed."""
    return sum(len(gzip.compress(path.read_bytes())) for path in files) / 1024
