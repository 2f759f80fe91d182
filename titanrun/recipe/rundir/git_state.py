"""Commit and working-tree diff of a folder.

Reads them with git, bounded in time and size, without locks or external diff programs.
"""

import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from titanrun.config.redaction import redact, redact_tokens

TIMEOUT_SECONDS = 5.0
MOST_BYTES = 1024**2
MOST_UNTRACKED = 100
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
TRUNCATION_NOTE = "... truncated: the rest of the diff is not kept\n"


@dataclass(frozen=True, slots=True)
class GitState:
    """State of a folder in a git repository.

    `diff` is empty if no tracked file differs from the commit, and None if git failed.
    """

    commit: str
    branch: str | None
    diff: str | None
    untracked: tuple[str, ...]

    @property
    def is_dirty(self) -> bool | None:
        """Whether anything differs from the commit, or None if unknown."""
        return None if self.diff is None else bool(self.diff or self.untracked)


def read_git_state(folder: Path, secret_values: Collection[str]) -> GitState | None:
    """Return the state of the repository around `folder`, or None without one or without git.

    Args:
        folder: Folder in the repository.
        secret_values: Secrets to redact, in addition to all that looks like a token or a key.
    """
    commit = run_git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    branch = (run_git(folder, "symbolic-ref", "--short", "HEAD") or "").strip()
    diff = run_git(folder, *DIFF)
    cleaned = None if diff is None else redact_tokens(redact(diff, secret_values))
    names = redact(
        run_git(folder, "ls-files", "--others", "--exclude-standard") or "", secret_values
    ).splitlines()
    return GitState(commit.strip(), branch or None, cleaned, tuple(names[:MOST_UNTRACKED]))


def run_git(folder: Path, *arguments: str) -> str | None:
    """Return git's output, truncated to whole lines within MOST_BYTES.

    Return None if git fails, is missing, or takes too long.
    """
    with TemporaryFile() as output:
        try:
            command = [*GIT, *arguments]
            subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        output.seek(0)
        said = output.read(MOST_BYTES + 1)
    if len(said) <= MOST_BYTES:
        return said.decode("utf-8", "replace")
    # end with a whole line: half a secret would not be recognized and redacted
    return said[: said.rfind(b"\n", 0, MOST_BYTES) + 1].decode("utf-8", "replace") + TRUNCATION_NOTE
