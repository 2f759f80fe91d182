"""Consent to run code that a recipe names: commands, scripts, and classes beside weights.

Consent is remembered per digest in the state folder of the user, never in a recipe, a run directory
or a checkpoint: whoever sends those would consent for you. A digest covers the words of a command,
the folder where it runs, and the content of every file that it names.
"""

import hashlib
import json
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from titanrun.config.problems import DataPath

TRUST_FLAG = "--trust"
# what the command line allows in this process and those it starts: every code, or a model's
TRUST_VARIABLE = "TITANRUN_TRUST"
CodeKind = Literal["command", "folder", "shell", "model code", "plug-in"]
TRUST_ALL = "all"
TRUST_MODEL_CODE: Literal["model code"] = "model code"
# a larger file counts by size and time of change
MAX_HASHED_BYTES = 64 * 1024**2
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class NamedCode:
    """Code that a recipe names.

    Args:
        kind: what it is. Model code is used only with consent; all other code is needed.
        path: setting that names it.
        text: what would run, for messages.
        digest: identity under which consent is remembered.
    """

    kind: CodeKind
    path: DataPath
    text: str
    digest: str

    @property
    def is_required(self) -> bool:
        """Whether the recipe cannot run without it."""
        return self.kind != TRUST_MODEL_CODE


def compute_code_digest(kind: CodeKind, words: Sequence[str], files: Iterable[Path] = ()) -> str:
    """Compute the digest of code: its kind, its words, and the content of its files."""
    found = [[str(file), hash_file(file)] for file in files]
    return hashlib.sha256(json.dumps([kind, list(words), found]).encode()).hexdigest()


def compute_folder_digest(kind: CodeKind, folder: Path, suffixes: Sequence[str]) -> str:
    """Compute the digest of the code files of a folder, wherever the folder is."""
    files = list_code_files(folder, suffixes)
    found = [[str(file.relative_to(folder)), hash_file(file)] for file in files]
    return hashlib.sha256(json.dumps([kind, found]).encode()).hexdigest()


def list_code_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files below a folder with one of these suffixes, in order.

    A folder that cannot be read has none: whoever uses it reports that.
    """
    try:
        return find_files(folder, suffixes)
    except (OSError, ValueError):  # a name that is too long, or has a NUL character
        return []


def find_files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files below a folder with one of these suffixes, in order."""
    found = (file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    return sorted(file for file, _ in zip(found, range(MAX_FILES), strict=False))


def hash_file(file: Path) -> str | None:
    """Return a digest of a regular file, None if it is something else or cannot be read."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_HASHED_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def get_state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of what titanrun remembers for the user."""
    state = environment.get("XDG_STATE_HOME") or ""
    home = environment.get("HOME") or "~"
    base = Path(state) if Path(state).is_absolute() else Path(home).expanduser() / ".local/state"
    return base / "titanrun"


def get_trust_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of remembered consent, which only the user writes."""
    return get_state_folder(environment) / "trust"


def is_trusted(code: NamedCode, environment: Mapping[str, str]) -> bool:
    """Return whether the command line allows this code, or it was allowed before."""
    allowed = environment.get(TRUST_VARIABLE)
    if allowed == TRUST_ALL or (allowed == TRUST_MODEL_CODE and code.kind == TRUST_MODEL_CODE):
        return True
    return (get_trust_folder(environment) / code.digest).is_file()


def remember_trust(code: NamedCode, environment: Mapping[str, str]) -> bool:
    """Remember consent, and return whether the state folder can be written."""
    folder = get_trust_folder(environment)
    about = {"time": time.time(), "kind": code.kind, "text": code.text, "cwd": str(Path.cwd())}
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / code.digest).write_text(json.dumps(about) + "\n", encoding="utf-8")
        return True
    return False
