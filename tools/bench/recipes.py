"""CPU seconds of reading recipes.

One of 10 KB, a hundred of 4 KB, one of a megabyte, and two compared.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from startup import DEBUG_RECIPE, cpu_seconds, show

LAST_SECTION = re.compile(r"^\w+:[^\n]*\n(?: .*\n|- .*\n)*\Z", re.MULTILINE)
TITANRUN = [sys.executable, "-m", "titanrun"]


def recipes_report(runs: int) -> None:
    """Print each figure beside its target."""
    resolved = subprocess.run(
        [*TITANRUN, "show", DEBUG_RECIPE], check=True, capture_output=True, text=True
    ).stdout
    body = resolved.partition("\n")[2]
    with tempfile.TemporaryDirectory() as folder:
        small = [
            str(written(Path(folder) / f"r{number}.yaml", of_size(body, 4)))
            for number in range(100)
        ]
        large = str(written(Path(folder) / "large.yaml", of_size(body, 10)))
        other = str(written(Path(folder) / "other.yaml", of_size(body, 10)))
        megabyte = str(
            written(Path(folder) / "megabyte.yaml", body + "x-lines: |\n" + "  line\n" * 140_000)
        )
        show("titanrun validate, 10 KB", cpu_seconds([*TITANRUN, "validate", large], runs), 0.30)
        show(
            "titanrun validate, 100 recipes of 4 KB",
            cpu_seconds([*TITANRUN, "validate", "-q", *small], runs),
            1.3,
        )
        show("titanrun validate, 1 MiB", cpu_seconds([*TITANRUN, "validate", megabyte], 1), 10)
        show(
            "titanrun diff-config, 10 KB each",
            cpu_seconds([*TITANRUN, "diff-config", large, other], runs),
            0.35,
        )


def of_size(body: str, kilobytes: int) -> str:
    """Bring a whole resolved recipe to a size.

    Its last sections are left out, or short values are added below an `x-` key.
    """
    size = kilobytes * 1024
    while len(body) > size:
        body = body[: LAST_SECTION.search(body).start()]
    lines = [
        f'  key_{number:03}: {{name: "value {number}", size: {number}}}\n' for number in range(1000)
    ]
    filled = body + "x-more:\n  first: 1\n"
    for line in lines:
        filled += line if len(filled) + len(line) <= size else ""
    return filled


def written(path: Path, text: str) -> Path:
    """Write the text to the file and return its path."""
    path.write_text(text, encoding="utf-8")
    return path
