"""RNG states of each rank in its own file.

The file names its rank: a rank never resumes with the RNG states of another.
"""

import json
from collections.abc import Mapping

import safetensors.torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.spec.hashed_file import FileEntry, write_hashed_file
from titanrun.components.checkpoints.spec.manifest import corrupt_file_error
from titanrun.components.checkpoints.spec.storage_path import AnyPath, local_copy
from titanrun.components.checkpoints.spec.verification import get_rng_file_name
from titanrun.config.json_text import parse_json

METADATA_KEY = "titanrun"


def write_rng_states(
    folder: AnyPath, rank: int, states: Mapping[str, Tensor]
) -> dict[str, FileEntry]:
    """Write the file of one rank into `folder`."""
    # one entry: the library orders several entries differently each time
    about = {METADATA_KEY: json.dumps({"rank": rank, "xxh3_128": compute_rng_digest(states)})}
    name = get_rng_file_name(rank)
    return {
        name: write_hashed_file(folder / name, safetensors.torch.save(dict(states), metadata=about))
    }


def read_rng_states(folder: AnyPath, rank: int) -> dict[str, Tensor]:
    """Return the RNG states of one rank.

    Raises:
        ProblemsFound: A problem `checkpoint` if the file is damaged or of another rank.
    """
    path = folder / get_rng_file_name(rank)
    try:
        with (
            local_copy(path) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            about = parse_json((file.metadata() or {}).get(METADATA_KEY, "{}"))
            states = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, ValueError, SafetensorError) as error:
        raise corrupt_file_error(path, str(error)) from error
    if not isinstance(about, dict) or about.get("xxh3_128") != compute_rng_digest(states):
        raise corrupt_file_error(path, "its content has changed")
    if about.get("rank") != rank:
        raise corrupt_file_error(path, f"it holds the RNG states of rank {about.get('rank')}")
    return states


def compute_rng_digest(states: Mapping[str, Tensor]) -> str:
    """Return a digest of names and values."""
    digest = xxhash.xxh3_128()
    for name in sorted(states):
        digest.update(f"{name} {states[name].dtype} {list(states[name].shape)}\n".encode())
        digest.update(states[name].numpy().tobytes())
    return digest.hexdigest()
