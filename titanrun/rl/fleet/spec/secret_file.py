"""File with the secret that a trainer and its generators on other machines share."""

import os
import secrets
import stat
from pathlib import Path

from titanrun.config.problems import ProblemsFound, problem_error

SECRET_PATH = ("rl", "fleet", "secret_file")
# of a secret that this program makes, and of the shortest one that it takes
NUM_BYTES = 32
MIN_CHARS = 16
FORBIDDEN_MODE = stat.S_IRWXG | stat.S_IRWXO


def read_secret(path: Path) -> bytes:
    """Return the secret in a file that only its owner can read.

    Raises:
        ProblemsFound: the file cannot be read, others may read it, or it is too short.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read().strip()
    except OSError as error:
        raise build_error(
            f"the secret cannot be read: {error.strerror}: {path}",
            "copy the file that titanrun fleet makes on the generator's machine, with mode 600",
        ) from None
    if mode & FORBIDDEN_MODE:
        raise build_error(f"other users may read the secret in {path}", f"chmod 600 {path}")
    if len(secret) < MIN_CHARS:
        raise build_error(
            f"the secret in {path} has fewer than {MIN_CHARS} characters",
            "remove the file: titanrun fleet makes another",
        )
    return secret


def create_secret_file(path: Path) -> bool:
    """Write a new secret into a file that is absent. Return whether it was.

    Raises:
        ProblemsFound: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise build_error(
            f"the secret cannot be written: {error.strerror}: {path}", "name another file"
        ) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(NUM_BYTES) + "\n")
    return True


def build_error(message: str, hint: str) -> ProblemsFound:
    """Build the problem of a secret file."""
    return problem_error("usage", message, path=SECRET_PATH, hint=hint)
