"""Whether the process of an id still exists."""

import os


def is_process_alive(pid: int | None) -> bool:
    """Return whether a process with this id exists."""
    if pid is None or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
