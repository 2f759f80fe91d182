"""Run the shell blocks of documentation pages, and compare or write the output that they show.

Blocks `sh` are run, and must succeed. Blocks `console` hold one command after `$ ` and its output.
The blocks of a page share one folder. A block below a line `<!-- not run: REASON -->` is left out.

Usage: python tools/run_pages.py --check|--write PAGE...
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^\n]+ -->\n)?^```(?P<kind>sh|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
ANY_LINES = "..."
# what differs from run to run and from machine to machine
CHANGING = [
    (re.compile(r"[\d,]+ tok/s"), "N tok/s"),
    (re.compile(r"[\d.]+ TFLOPs"), "N TFLOPs"),
    (re.compile(r"[\d.]+ [GM]iB"), "N GiB"),
    # the time that is left
    (re.compile(r"(\d+:)+\d\d left"), ""),
    # the start of a run, and its folder
    (re.compile(r"\d{4}-\d\d-\d\d[ -]\d\d[:-]?\d\d"), "DATE"),
    (re.compile(r"\b[\d.]+ (s|min|ms)\b"), "TIME"),
    (re.compile(r"\d+:\d\d\b"), "TIME"),
]
# other processors sum in another order
TOLERANCE = 0.02
TIMEOUT_SECONDS = 3600


class PageError(Exception):
    """A block that failed, or whose output is not what the page shows."""


@dataclass(frozen=True)
class Block:
    """One block of a page, with the position of its text."""

    kind: str
    text: str
    start: int
    end: int
    is_run: bool

    @property
    def command(self) -> str:
        """What the shell runs."""
        if self.kind == "sh":
            return self.text
        return self.text.partition("\n")[0].removeprefix("$ ")

    @property
    def shown(self) -> str:
        """The output that the page shows."""
        return self.text.partition("\n")[2]


def find_blocks(page: str) -> Iterator[Block]:
    """Yield the shell blocks of a page."""
    for found in BLOCK.finditer(page):
        start, end = found.span("text")
        yield Block(found["kind"], found["text"], start, end, found["mark"] is None)


def run_block(block: Block, folder: Path) -> str:
    """Return the output of a block.

    Raises:
        PageError: It failed.
    """
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH")}
    fixed = {"TERM": "dumb", "COLUMNS": "100", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    # shown as on a terminal, with one thread for losses that do not depend on the machine
    environment = {"HOME": str(folder / ".home"), "OMP_NUM_THREADS": "1", **fixed, **kept}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise PageError(f"exit code {done.returncode}: {block.command}\n{done.stdout}")
    # some commands print whole paths
    return done.stdout.replace(f"{folder}/", "")


def normalize(line: str) -> list[str]:
    """Split a line into words, without what changes."""
    for pattern, replacement in CHANGING:
        line = pattern.sub(replacement, line)
    return line.split()


def is_same_word(shown: str, real: str) -> bool:
    """Return whether two words are equal, or numbers that are nearly equal."""
    if shown == real:
        return True
    try:
        left, right = float(shown), float(real)
    except ValueError:
        return False
    return abs(left - right) <= TOLERANCE * max(abs(left), abs(right))


def is_same_line(shown: str, real: str) -> bool:
    """Return whether two lines agree in all that does not change."""
    left, right = normalize(shown), normalize(real)
    return len(left) == len(right) and all(map(is_same_word, left, right))


def matches(shown: list[str], real: list[str]) -> bool:
    """Return whether output agrees with what a page shows, where `...` is any lines."""
    if not shown:
        return not real
    if shown[0] == ANY_LINES:
        return any(matches(shown[1:], real[start:]) for start in range(len(real) + 1))
    return bool(real) and is_same_line(shown[0], real[0]) and matches(shown[1:], real[1:])


def check_page(page: Path, folder: Path) -> int:
    """Run all blocks of a page in a folder, and return their number.

    Raises:
        PageError: A block failed, or its output differs.
    """
    count = 0
    for block in find_blocks(page.read_text(encoding="utf-8")):
        if not block.is_run:
            continue
        output = run_block(block, folder)
        count += 1
        if block.kind == "console" and not matches(block.shown.splitlines(), output.splitlines()):
            raise PageError(f"{page.name}: {block.command}\nprinted:\n{output}")
    return count


def write_page(page: Path, folder: Path) -> None:
    """Run all blocks of a page, and write the output of those of kind `console`.

    A block that shows `...` stays as it is.
    """
    text = page.read_text(encoding="utf-8")
    changed, last = [], 0
    for block in find_blocks(text):
        if not block.is_run:
            continue
        output = run_block(block, folder)
        if block.kind == "console" and ANY_LINES not in block.shown.splitlines():
            changed += [text[last : block.start], f"$ {block.command}\n{output.rstrip()}\n"]
            last = block.end
    page.write_text("".join([*changed, text[last:]]), encoding="utf-8")


def main() -> int:
    """Check or write pages, and return 1 if one fails."""
    action, *pages = sys.argv[1:]
    for name in pages:
        with tempfile.TemporaryDirectory() as folder:
            try:
                if action == "--write":
                    write_page(Path(name), Path(folder))
                else:
                    print(f"{name}: {check_page(Path(name), Path(folder))} blocks")
            except PageError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
