"""The random state of each rank in a file of its own, which says whose it is: a rank never goes on with another's numbers."""

import json
from collections.abc import Mapping

import safetensors.torch
import xxhash
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.addresses import Place, local_copy
from titanrun.components.checkpoints.digested_file import FileEntry, write_file
from titanrun.components.checkpoints.manifest import damaged

ABOUT = "titanrun"


def random_file(rank: int) -> str:
    """The name of the file of one rank."""
    return f"rng-rank-{rank}.safetensors"


def write_random_states(
    folder: Place, rank: int, states: Mapping[str, Tensor]
) -> dict[str, FileEntry]:
    """Write the file of one rank into `folder`."""
    # one entry: the library writes several in an order of its own each time
    about = {ABOUT: json.dumps({"rank": rank, "xxh3_128": states_digest(states)})}
    name = random_file(rank)
    return {name: write_file(folder / name, safetensors.torch.save(dict(states), metadata=about))}


def read_random_states(folder: Place, rank: int) -> dict[str, Tensor]:
    """The random state of one rank. Raises a problem `checkpoint` where the file is damaged or another rank's."""
    path = folder / random_file(rank)
    try:
        with (
            local_copy(path) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            states = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, ValueError, SafetensorError) as error:
        raise damaged(path, str(error)) from error
    if not isinstance(about, dict) or about.get("xxh3_128") != states_digest(states):
        raise damaged(path, "it is not what was written")
    if about.get("rank") != rank:
        raise damaged(path, f"it holds the random state of rank {about.get('rank')}")
    return states


def states_digest(states: Mapping[str, Tensor]) -> str:
    """A digest of names and values."""
    digest = xxhash.xxh3_128()
    for name in sorted(states):
        digest.update(f"{name} {states[name].dtype} {list(states[name].shape)}\n".encode())
        digest.update(states[name].numpy().tobytes())
    return digest.hexdigest()
