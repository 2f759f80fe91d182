"""The one place on the execution side that reads or writes environment variables."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import fail

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which process of a run this is, as the launcher or torchrun tells it.

    Args:
        store_socket: a listening socket at which the ranks meet; given to the first rank by our own launcher.
        store_host: where the first rank is reached.
        store_port: the port of the store there.
        failure_file: where our own launcher looks for what went wrong here; it says so once for all ranks.
        is_quiet: whether the console shall hear of warnings and errors only.
        logs_json: whether each line on the console is a JSON object.
        stop_after: the step after which the run stops; None: after its last.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    store_socket: int | None = None
    store_host: str = "127.0.0.1"
    store_port: int = 0
    failure_file: Path | None = None
    is_quiet: bool = False
    logs_json: bool = False
    stop_after: int | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0


def read_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; one process of one where the launcher set nothing. Raises ProblemsFound for text that is no number."""
    return Place(
        rank=whole_number(environ, "RANK", 0),
        local_rank=whole_number(environ, "LOCAL_RANK", 0),
        world_size=whole_number(environ, "WORLD_SIZE", 1),
        store_socket=whole_number(environ, "TITANRUN_STORE_SOCKET", 0) or None,
        store_host=environ.get("MASTER_ADDR", "127.0.0.1"),
        store_port=whole_number(environ, "MASTER_PORT", 0),
        failure_file=failure_file(environ),
        is_quiet="TITANRUN_QUIET" in environ,
        logs_json=environ.get("TITANRUN_LOG_FORMAT") == "json",
        stop_after=whole_number(environ, "TITANRUN_STOP_AFTER", 0) or None,
    )


def failure_file(environ: Mapping[str, str]) -> Path | None:
    """Where our launcher looks for what went wrong here; of several machines each names a folder for its ranks."""
    file, folder = environ.get("TITANRUN_FAILURE_FILE"), environ.get("TITANRUN_FAILURE_FOLDER")
    if file or not folder:
        return Path(file) if file else None
    return Path(folder) / f"rank-{whole_number(environ, 'RANK', 0)}.json"


def whole_number(environ: Mapping[str, str], name: str, default: int) -> int:
    """The variable `name` as a non-negative integer."""
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise fail(
            "usage",
            f"the environment variable {name} is {text!r}, not a whole number",
            help=f"unset {name}, or let the launcher set it",
        )
    return int(text)


def trusts_remote_code(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the command line said that code which comes with weights may run."""
    return "TITANRUN_TRUST_REMOTE_CODE" in environ


def variables() -> Mapping[str, str]:
    """The environment variables that the secrets of a recipe name."""
    return dict(os.environ)


def enforce(name: str, value: str) -> None:
    """Sets a variable that the recipe decides on, whatever the user has set it to; a warning says so."""
    before = os.environ.get(name, value)
    if before != value:
        log.warning(
            "the environment variable %s is %s, and the recipe makes it %s", name, before, value
        )
    put(name, value)


def put(name: str, value: str) -> None:
    """Sets a variable that a library reads, whatever it was."""
    os.environ[name] = value


def set_default(name: str, value: str) -> None:
    """Sets a variable that a library reads, unless the user has set it."""
    os.environ.setdefault(name, value)


def alone_with(device: int) -> dict[str, str]:
    """The variables for a process that is no rank, and sees the accelerator `device` of this one's as its only one."""
    of_ranks = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "GROUP_",
        "ROLE_",
        "MASTER_",
        "TORCHELASTIC_",
        "TITANRUN_",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(of_ranks)}
    visible = [name for name in kept.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": visible[device] if device < len(visible) else str(device),
    }
