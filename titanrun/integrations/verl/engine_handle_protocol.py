"""What verl's engine needs of an opened engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.training.engine import Engine


class EngineHandleProtocol(Protocol):
    """Engine with its meshes, checkpoints and weight names.

    Implemented by titanrun.worker.open_engine.EngineHandle.
    """

    engine: Engine
    meshes: ParallelMeshes | None

    @property
    def dp_rank(self) -> int:
        """Data-parallel rank."""

    @property
    def dp_size(self) -> int:
        """Number of data-parallel ranks."""

    @property
    def is_output_rank(self) -> bool:
        """Whether this rank provides the outputs of its sequences."""

    @property
    def recipe(self) -> Any:
        """Recipe of the engine."""

    def state_dict_stream(
        self, *, names: Any, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the full weights by name."""

    def save(
        self, folder: Path | str, *, step: int, keep: int = 0, model_only: bool = False
    ) -> Any:
        """Save a checkpoint."""

    def load(
        self,
        folder: Path | str,
        *,
        step: int | None = None,
        scope: Literal["all", "model"] = "all",
    ) -> int:
        """Load a checkpoint and return its step."""

    def close(self) -> None:
        """Release all resources."""
