"""Flight recorder: the last collectives of a rank, written to a file after a failure.

nccl writes the file itself if a collective times out. For gloo, and if another rank or the watchdog
ends the run first, this module writes it. `python -m torch.distributed.flight_recorder.fr_trace
<folder>` compares the files of all ranks.
"""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.rank_env import (
    RankInfo,
    get_environment_variables,
    override_variable,
    set_variable,
)

BUFFER_SIZE_VARIABLE, DUMP_FILE_VARIABLE = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
# a rank whose collective timed out ends without closing its process groups, which could hang
# forever
SKIP_CLEANUP = "3"

log = logging.getLogger(__name__)


def enable_flight_recorder(comm: CommConfig, run_dir: Path, device: torch.device) -> None:
    """Record the collectives of this process. Call this before its first process group."""
    # torchrun sets the first one too
    set_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", SKIP_CLEANUP)
    settings = {BUFFER_SIZE_VARIABLE: str(comm.trace_buf_size)}
    if comm.trace_buf_size:
        folder = run_dir.absolute() / comm.save_traces_folder
        settings |= {
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            DUMP_FILE_VARIABLE: str(folder / comm.save_traces_file_prefix),
        }
        if is_accelerator(device):
            # nccl does not create the folder
            folder.mkdir(parents=True, exist_ok=True)
    for name, value in settings.items():
        override_variable(name, value)


def dump_flight_recorder(rank_info: RankInfo) -> Path | None:
    """Write the last collectives of this rank to its file and return the path.

    Return None if the recorder is disabled or the file cannot be written.
    """
    prefix = get_environment_variables().get(DUMP_FILE_VARIABLE)
    if not prefix or not int(get_environment_variables().get(BUFFER_SIZE_VARIABLE, "0")):
        return None
    path = Path(f"{prefix}{rank_info.rank}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(get_flight_recorder_trace())
    except (OSError, RuntimeError) as error:
        log.warning("cannot write the trace of the last collectives: %s", error)
        return None
    return path


def get_flight_recorder_trace() -> bytes:
    """Return the trace of nccl's recorder, or of gloo's if ranks do not use nccl.

    gloo's trace does not contain the members of groups. They are added here.
    """
    recorder: Any = c10d
    dump_nccl_trace = getattr(recorder, "_dump_nccl_trace", None)
    if dump_nccl_trace is not None and "nccl" in dist.get_backend_config():
        return bytes(dump_nccl_trace())
    found = pickle.loads(recorder._dump_fr_trace())
    groups = {name: group for group, name in dist.distributed_c10d._world.pg_names.items()}
    found["pg_config"] = {
        name: {"name": name, "desc": group.group_desc, "ranks": format_group_ranks(group)}
        for name, group in groups.items()
    }
    return pickle.dumps(found)


def format_group_ranks(group: dist.ProcessGroup) -> str:
    """Return the ranks of a group in the recorder's format."""
    return json.dumps(dist.get_process_group_ranks(group))
