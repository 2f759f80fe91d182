"""The file that rows are read from while a run trains, watched: other bytes in the same place would be trained on in silence."""

from dataclasses import dataclass
from pathlib import Path

from titanrun.components.data.token_file import map_tokens, summarise
from titanrun.config.problems import fail

HELP = "give the run its data back, then start the same command again: it goes on from its last checkpoint"


@dataclass(frozen=True, slots=True)
class FileState:
    """Which file a path names, and when it was last written; None stands for one that is not there."""

    device: int
    inode: int
    size: int
    mtime_ns: int


def state_of(path: Path) -> FileState | None:
    """What the file is now."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class WatchedFile:
    """A token file that shall stay as it was when it was opened.

    Args:
        path: of the .npy file.
        state: what it was before it was read through.
        digest: of its token ids, as `summarise` gave it.
    """

    def __init__(self, path: Path, *, state: FileState | None, digest: str) -> None:
        self.path = path
        self._state = state
        self._digest = digest

    def check(self) -> None:
        """Raises a data problem where the file is gone or holds other ids; one stat, and a look inside only where that changed."""
        now = state_of(self.path)
        if now == self._state:
            return
        if now is None:
            raise fail(
                "data", f"'{self.path}' is gone while the run reads it", path=("path",), help=HELP
            )
        if summarise(map_tokens(self.path), source=str(self.path)).digest != self._digest:
            raise fail(
                "data", f"'{self.path}' changed while the run reads it", path=("path",), help=HELP
            )
        self._state = now
