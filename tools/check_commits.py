"""Check messages of commits: the form of the subject, and the width of what follows.

Usage: python tools/check_commits.py FILE          a message, as a commit-msg hook gets it
       python tools/check_commits.py --range A..B  the commits of a range
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_COLUMNS = 72
WRITTEN_BY_GIT = re.compile(r'(?:Merge (?:branch|pull request|remote)|Revert "|fixup! |squash! )')


def find_faults(message: str) -> Iterator[str]:
    """Yield what is wrong with a message; comments of the editor are left out."""
    lines = [line for line in message.rstrip().splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if WRITTEN_BY_GIT.match(subject):
        return
    if not subject:
        yield "the first line is empty"
    if len(subject) > MAX_COLUMNS:
        yield f"the subject has {len(subject)} columns, at most {MAX_COLUMNS} are allowed"
    if subject.endswith("."):
        yield "the subject ends in a full stop"
    if re.match(r"[a-z]+(?:\([^)]*\))?: ", subject):
        yield "the subject has a prefix"
    if len(lines) > 1 and lines[1]:
        yield "the second line is not empty"
    for line in lines[2:]:
        # a long word, such as an address, cannot be wrapped
        if len(line) > MAX_COLUMNS and " " in line.strip():
            yield f"a line of the body has {len(line)} columns: {line}"


def read_range(commits: str) -> Iterator[tuple[str, str]]:
    """Yield the hash and the message of each commit of a range."""
    for commit in run_git("rev-list", commits).split():
        yield commit[:10], run_git("show", "--no-patch", "--format=%B", commit)


def run_git(*arguments: str) -> str:
    """Return the output of git."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Print the faults, and return 1 if there are any."""
    match sys.argv[1:]:
        case ["--range", commits]:
            messages = list(read_range(commits))
        case [file]:
            messages = [(file, Path(file).read_text(encoding="utf-8"))]
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    faults = [f"{name}: {fault}" for name, text in messages for fault in find_faults(text)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
