"""Weights that an actor pushes: by version in a store, one entry a tensor or a handle of a distributed checkpoint; Hugging Face's names."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.whole_folder import remove_whole, written_whole
from titanrun.models.shared.config import ModelConfig
from titanrun.rl.weight_sync.files import read_dcp, write_dcp
from titanrun.training.engine import Engine
from titanrun.worker.weights import huggingface_state

Store = MutableMapping[str, Any]


def prefix_of(version: int) -> str:
    """What every key of a version begins with."""
    return f"policy_ver_{version:010d}"


def parameter_key(version: int, name: str) -> str:
    """The key of one tensor."""
    return f"{prefix_of(version)}.{name}"


@dataclass(frozen=True, slots=True)
class DcpHandle:
    """A version on disk: the folder of a distributed checkpoint, and the names of the weights in it."""

    checkpoint_id: str
    param_names: tuple[str, ...]

    def load(self) -> dict[str, Tensor]:
        """Every weight by its name. Raises FileNotFoundError where the version was dropped."""
        if not Path(self.checkpoint_id).is_dir():
            raise FileNotFoundError(self.checkpoint_id)
        return dict(read_dcp(Path(self.checkpoint_id)))

    def drop(self) -> None:
        """Removes the folder; more than once does no harm."""
        if Path(self.checkpoint_id).is_dir():
            remove_whole(Path(self.checkpoint_id))


def write_version(folder: Path, weights: dict[str, Tensor]) -> DcpHandle:
    """The handle of weights that were written into `folder`, which is there whole or not at all; one of that name makes way."""
    if folder.is_dir():
        remove_whole(folder)
    with written_whole(folder) as temporary:
        write_dcp(temporary, weights)
    return DcpHandle(str(folder), tuple(weights))


def drop_version(store: Store, version: int) -> None:
    """Forgets a version: its entries, and the folders that they are handles of."""
    for key in [key for key in store if key.startswith(f"{prefix_of(version)}.")]:
        value = store.pop(key)
        if isinstance(value, DcpHandle):
            value.drop()


@torch.no_grad()
def huggingface_weights(engine: Engine, model: ModelConfig, *, is_kept: bool) -> dict[str, Tensor]:
    """Copies of the whole weights in host memory under Hugging Face's names; empty where they are not kept. Every rank must call it."""
    found = huggingface_state(engine, model, dtype=None, is_kept=is_kept)
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.items()
    }
