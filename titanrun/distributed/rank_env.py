"""Environment variables. Only this module reads or writes them in worker processes."""

import logging
import os
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.config.redaction import is_secret_variable
from titanrun.distributed.spec.rank_files import build_file_stem

log = logging.getLogger(__name__)
# the name of torch >= 2.9, and the older one
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
COMPILE_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
ALLOCATOR_DEFAULT = "expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Identity of this process within a run, as the launcher or torchrun sets it.

    Args:
        rank: global rank.
        local_rank: rank on this machine.
        world_size: number of ranks.
        store_socket: listening socket of the rendezvous, which our own launcher passes to the first
            rank.
        store_host: host of the first rank.
        store_port: port of the store there.
        failure_file: file in which our own launcher looks for the error of this rank. The launcher
            reports it once for all ranks.
        launcher: process id of our own launcher, if that has the file in a folder of its own.
        is_quiet: whether the console shows warnings and errors only.
        logs_json: whether each line on the console is a JSON object.
        stop_after_step: step after which the run stops. None: after its last.
        group: number of the replica group that this rank is in. None if the run has none; ranks
            and their number are those of the group.
        lighthouse: address at which the groups find each other.
        lifeline: descriptor of a pipe that our own launcher holds open while it may restart this
            rank. None: it does not.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    store_socket: int | None = None
    store_host: str = "127.0.0.1"
    store_port: int = 0
    failure_file: Path | None = None
    launcher: int | None = None
    is_quiet: bool = False
    logs_json: bool = False
    stop_after_step: int | None = None
    group: int | None = None
    lighthouse: str | None = None
    lifeline: int | None = None

    @property
    def is_main_rank(self) -> bool:
        """Whether this rank logs and writes for all."""
        return self.rank == 0

    @property
    def file_stem(self) -> str:
        """Name of this rank in the names of its files."""
        return build_file_stem(self.rank, self.group)


def read_rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo:
    """Read the identity of this process, a single process if the launcher set nothing.

    Raises:
        ProblemsFound: if a variable is not a whole number.
    """
    return RankInfo(
        rank=read_integer_variable(environ, "RANK", 0),
        local_rank=read_integer_variable(environ, "LOCAL_RANK", 0),
        world_size=read_integer_variable(environ, "WORLD_SIZE", 1),
        store_socket=read_integer_variable(environ, "TITANRUN_STORE_SOCKET", 0) or None,
        store_host=environ.get("MASTER_ADDR", "127.0.0.1"),
        store_port=read_integer_variable(environ, "MASTER_PORT", 0),
        failure_file=get_failure_file(environ),
        launcher=read_integer_variable(environ, "TITANRUN_LAUNCHER", 0) or None,
        is_quiet="TITANRUN_QUIET" in environ,
        logs_json=environ.get("TITANRUN_LOG_FORMAT") == "json",
        stop_after_step=read_integer_variable(environ, "TITANRUN_STOP_AFTER", 0) or None,
        group=read_integer_variable(environ, "TITANRUN_GROUP", 0)
        if environ.get("TITANRUN_GROUP")
        else None,
        lighthouse=environ.get("TITANRUN_LIGHTHOUSE"),
        lifeline=read_integer_variable(environ, "TITANRUN_LIFELINE", 0) or None,
    )


def is_first_process(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process has the lowest rank of those that torchrun or srun started."""
    rank = environ.get("RANK") or environ.get("SLURM_PROCID") or "0"
    return rank == "0"


def set_rank_variables(
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    store_host: str,
    store_port: int,
    store_socket: int | None,
) -> None:
    """Set the variables that `read_rank_info` reads, in a process that another program started.

    Those that are None are removed. The names are those of `RankInfo`.
    """
    values = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": store_host,
        "MASTER_PORT": store_port,
        "TITANRUN_STORE_SOCKET": store_socket,
    }
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = str(value)


def get_failure_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path at which our launcher looks for the error of this rank.

    On several machines each machine names a folder for its ranks.
    """
    file, folder = environ.get("TITANRUN_FAILURE_FILE"), environ.get("TITANRUN_FAILURE_FOLDER")
    if file or not folder:
        return Path(file) if file else None
    return Path(folder) / f"rank-{read_integer_variable(environ, 'RANK', 0)}.json"


def read_integer_variable(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the variable `name` as a non-negative integer.

    Raises:
        ProblemsFound: if the text is not a whole number.
    """
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise problem_error(
            "usage",
            f"environment variable {name} is {text!r}, expected a whole number",
            hint=f"unset {name}, or let the launcher set it",
        )
    return int(text)


def get_environment_variables() -> Mapping[str, str]:
    """Return a copy of the environment variables, to which the secrets of a recipe refer."""
    return dict(os.environ)


def build_program_environment(
    kept: Collection[str] = (), environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Build the environment of a program that a recipe names: without secrets, except `kept`."""
    return {
        name: value
        for name, value in environ.items()
        if name in kept or not is_secret_variable(name, value)
    }


def override_variable(name: str, value: str) -> None:
    """Set a variable from the recipe, and warn if the user has set it to another value."""
    before = os.environ.get(name, value)
    if before != value:
        log.warning(
            "environment variable %s is %s, but the recipe sets it to %s", name, before, value
        )
    set_variable(name, value)


def set_variable(name: str, value: str) -> None:
    """Set a variable that a library reads, whatever its value was."""
    os.environ[name] = value


def set_variable_default(name: str, value: str) -> None:
    """Set a variable that a library reads, unless the user has set it."""
    os.environ.setdefault(name, value)


def set_allocator_default(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's allocator grow its segments, unless the user has set other options.

    Must be called before torch is imported. Fixed segments fragment: memory that is free in pieces
    does not fit the next batch.
    """
    if get_allocator_options(environ) is None:
        environ[ALLOCATOR_VARIABLES[0]] = ALLOCATOR_DEFAULT


def set_compile_cache_default(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep compiled kernels in the user's cache folder, unless the user has named another.

    torch's own default is a folder of temporary files, which machines empty.
    """
    if not environ.get(COMPILE_CACHE_VARIABLE):
        home = environ.get("HOME") or str(Path.home())
        cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
        environ[COMPILE_CACHE_VARIABLE] = f"{cache}/titanrun/inductor"


def get_allocator_options(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the options of torch's allocator, None if there are none."""
    return next((environ[name] for name in ALLOCATOR_VARIABLES if environ.get(name)), None)


def build_single_device_environment(device_index: int) -> dict[str, str]:
    """Build the environment of a process that is not a rank and sees one accelerator.

    `device_index` counts the accelerators that this process sees.
    """
    rank_prefixes = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "GROUP_",
        "ROLE_",
        "MASTER_",
        "TORCHELASTIC_",
        "TITANRUN_",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(rank_prefixes)}
    # other programs, such as vLLM, have pools that segments which grow do not fit
    if kept.get(ALLOCATOR_VARIABLES[0]) == ALLOCATOR_DEFAULT:
        del kept[ALLOCATOR_VARIABLES[0]]
    visible = [name for name in kept.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": visible[device_index]
        if device_index < len(visible)
        else str(device_index),
    }
