"""Versioned store of an actor's pushed weights under Hugging Face names.

A version is one entry per tensor, or a handle of a distributed checkpoint.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from titanrun.components.checkpoints.spec.atomic_folder import (
    atomic_folder,
    delete_folder_atomically,
)
from titanrun.models.shared.config import ModelConfig
from titanrun.rl.weight_sync.folder_transport import read_dcp, write_dcp
from titanrun.training.engine import Engine
from titanrun.worker.weights.huggingface_export import gather_huggingface_weights

Store = MutableMapping[str, Any]


def get_version_prefix(version: int) -> str:
    """Return the common prefix of all keys of a version."""
    return f"policy_ver_{version:010d}"


def get_parameter_key(version: int, name: str) -> str:
    """Return the key of one tensor."""
    return f"{get_version_prefix(version)}.{name}"


@dataclass(frozen=True, slots=True)
class DcpHandle:
    """Version on disk: the folder of a distributed checkpoint, and its weight names."""

    checkpoint_id: str
    param_names: tuple[str, ...]

    def load(self) -> dict[str, Tensor]:
        """Load all weights by name.

        Raises:
            FileNotFoundError: the version was dropped.
        """
        if not Path(self.checkpoint_id).is_dir():
            raise FileNotFoundError(self.checkpoint_id)
        return dict(read_dcp(Path(self.checkpoint_id)))

    def drop(self) -> None:
        """Remove the folder. Further calls have no effect."""
        if Path(self.checkpoint_id).is_dir():
            delete_folder_atomically(Path(self.checkpoint_id))


def write_version(folder: Path, weights: dict[str, Tensor]) -> DcpHandle:
    """Write weights atomically into `folder` and return their handle.

    An existing folder is replaced.
    """
    if folder.is_dir():
        delete_folder_atomically(folder)
    with atomic_folder(folder) as temporary:
        write_dcp(temporary, weights)
    return DcpHandle(str(folder), tuple(weights))


def drop_version(store: Store, version: int) -> None:
    """Drop a version: its entries, and the folders of its handles."""
    for key in [key for key in store if key.startswith(f"{get_version_prefix(version)}.")]:
        value = store.pop(key)
        if isinstance(value, DcpHandle):
            value.drop()


@torch.no_grad()
def copy_huggingface_weights(
    engine: Engine, model: ModelConfig, *, is_kept: bool
) -> dict[str, Tensor]:
    """Copy the full weights to host memory under Hugging Face names.

    The result is empty if `is_kept` is False. Collective: all ranks must call this.
    """
    found = gather_huggingface_weights(engine, model, dtype=None, is_kept=is_kept)
    return {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.items()
    }
