"""The flight recorder: what the last collectives of a rank were, in a file where the ranks lose each other.

nccl writes the file by itself where a collective times out; for gloo, and where another rank or the watchdog ends the run first, it is
written here. `python -m torch.distributed.flight_recorder.fr_trace <folder>` compares the files of all ranks.
"""

import json
import logging
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from titanrun.distributed.config import CommConfig
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.environment import Place, enforce, put, variables

SIZE, FILE = "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"
# a rank whose collective timed out ends, without closing what may hang for good
SKIP_CLEANUP = "3"

log = logging.getLogger(__name__)


def record_collectives(comm: CommConfig, run_dir: Path, device: torch.device) -> None:
    """Has collectives of this process recorded; before its first process group."""
    # torchrun sets the first one too
    put("TORCH_NCCL_ASYNC_ERROR_HANDLING", SKIP_CLEANUP)
    settings = {SIZE: str(comm.trace_buf_size)}
    if comm.trace_buf_size:
        folder = run_dir.absolute() / comm.save_traces_folder
        settings |= {
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            FILE: str(folder / comm.save_traces_file_prefix),
        }
        if is_accelerator(device):
            # nccl writes into folders that are there
            folder.mkdir(parents=True, exist_ok=True)
    for name, value in settings.items():
        enforce(name, value)


def write_collectives(place: Place) -> Path | None:
    """Writes the last collectives of this rank into its file; None where none are recorded, or the disk does not take them."""
    prefix = variables().get(FILE)
    if not prefix or not int(variables().get(SIZE, "0")):
        return None
    path = Path(f"{prefix}{place.rank}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(last_collectives())
    except (OSError, RuntimeError) as error:
        log.warning("cannot write what the last collectives were: %s", error)
        return None
    return path


def last_collectives() -> bytes:
    """What nccl's recorder holds where ranks use nccl, else gloo's, which does not say who is in which group."""
    of_nccl = getattr(c10d, "_dump_nccl_trace", None)
    if of_nccl is not None and "nccl" in dist.get_backend_config():
        return bytes(of_nccl())
    found = pickle.loads(c10d._dump_fr_trace())
    groups = {name: group for group, name in dist.distributed_c10d._world.pg_names.items()}
    found["pg_config"] = {
        name: {"name": name, "desc": group.group_desc, "ranks": members(group)}
        for name, group in groups.items()
    }
    return pickle.dumps(found)


def members(group: dist.ProcessGroup) -> str:
    """The ranks of a group, as the recorder writes them."""
    return json.dumps(dist.get_process_group_ranks(group))
