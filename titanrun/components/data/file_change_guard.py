"""Detection of changes in the data files of a running job.

Without it, the run would silently train on other bytes at the same path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from titanrun.components.data.token_file import open_token_memmap, summarize_tokens
from titanrun.config.problems import problem_error

RESTORE_DATA_HINT = (
    "restore the data of the run, then start the same command again: "
    "it resumes from its last checkpoint"
)


@dataclass(frozen=True, slots=True)
class FileState:
    """Identity and modification time of the file at a path."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def find_file_state(path: Path) -> FileState | None:
    """Return the current state of a file, None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class UnchangedData(Protocol):
    """Files that must stay as they were when they were opened."""

    def check(self) -> None:
        """Raise a data problem if they have changed."""


class UnchangedFiles:
    """Files that must not be written again, not even with the same bytes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._states = {path: find_file_state(path) for path in paths}

    def check(self) -> None:
        """Raise a data problem if a file is gone or was written again."""
        for path, state in self._states.items():
            now = find_file_state(path)
            if now != state:
                raise problem_error(
                    "data",
                    f"'{path}' {'is gone' if now is None else 'changed'} while the run reads it",
                    path=("path",),
                    hint=RESTORE_DATA_HINT,
                )


class UnchangedFile:
    """Token file that must stay as it was when it was opened.

    Args:
        path: The .npy file.
        state: Its state before it was read.
        digest: Digest of its token ids, from `summarize_tokens`.
        on_change: Called if the file was written again with the same digest.
    """

    def __init__(
        self,
        path: Path,
        *,
        state: FileState | None,
        digest: str,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._on_change = on_change
        self._state = state
        self._digest = digest

    def check(self) -> None:
        """Raise a data problem if the file is gone or holds other ids.

        Takes one stat call, and reads the file only if that changed.
        """
        now = find_file_state(self.path)
        if now == self._state:
            return
        if now is None:
            raise problem_error(
                "data",
                f"'{self.path}' is gone while the run reads it",
                path=("path",),
                hint=RESTORE_DATA_HINT,
            )
        if (
            summarize_tokens(open_token_memmap(self.path), source=str(self.path)).digest
            != self._digest
        ):
            raise problem_error(
                "data",
                f"'{self.path}' changed while the run reads it",
                path=("path",),
                hint=RESTORE_DATA_HINT,
            )
        # of a very large file, the digest is that of a sample
        if self._on_change is not None:
            self._on_change()
        self._state = now
