"""Which commit a folder is at, and what differs from it: read with git, bounded in time and size, without locks or foreign programs."""

import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from titanrun.config.masking import masked, without_tokens

TIMEOUT_SECONDS = 5.0
MOST_BYTES = 1024**2
MOST_UNTRACKED = 100
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
CUT = "... cut here: more of the diff is not kept\n"


@dataclass(frozen=True, slots=True)
class GitState:
    """A folder in a git repository. `diff` is empty where nothing tracked differs from the commit, None where git did not say."""

    commit: str
    branch: str | None
    diff: str | None
    untracked: tuple[str, ...]

    @property
    def is_dirty(self) -> bool | None:
        """Whether there is anything that the commit does not have; None where that is not known."""
        return None if self.diff is None else bool(self.diff or self.untracked)


def git_state(folder: Path, hidden: Collection[str]) -> GitState | None:
    """The state of the repository around `folder`; None where there is none, or no git.

    Args:
        folder: in the repository.
        hidden: values of secrets, which are masked, as is all that looks like a token or a key.
    """
    commit = git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    branch = (git(folder, "symbolic-ref", "--short", "HEAD") or "").strip()
    diff = git(folder, *DIFF)
    cleaned = None if diff is None else without_tokens(masked(diff, hidden))
    names = masked(
        git(folder, "ls-files", "--others", "--exclude-standard") or "", hidden
    ).splitlines()
    return GitState(commit.strip(), branch or None, cleaned, tuple(names[:MOST_UNTRACKED]))


def git(folder: Path, *arguments: str) -> str | None:
    """What git says, up to MOST_BYTES of whole lines; None where it fails, is not there, or takes too long."""
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
    # a whole line at the end: half a secret would not be known as one
    return said[: said.rfind(b"\n", 0, MOST_BYTES) + 1].decode("utf-8", "replace") + CUT
