"""Shapes of the weights in a checkpoint, as its manifest lists them. Torch-free."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.checkpoints.spec.manifest import (
    is_checkpoint,
    list_step_folders,
    read_manifest,
)
from titanrun.config.problems import ProblemsFound

Shapes = Mapping[str, tuple[int, ...]]
MODEL_PREFIX = "model."
LORA_A_SUFFIXES = (".lora_a", "_lora_a")
ADAPTER_SUFFIXES = (*LORA_A_SUFFIXES, ".lora_b", "_lora_b", ".lora_magnitude")
# as in float32[4, 64]
LISTED_TENSOR = re.compile(r"\w+\[([0-9, ]*)\]")


@dataclass(frozen=True, slots=True)
class SavedShapes:
    """Shapes of the weights in a checkpoint by name: adapters, and the others."""

    checkpoint: Path
    base: Shapes
    adapters: Shapes

    def find_adapter_rank(self) -> int | None:
        """Return the rank of the adapters, None without adapters."""
        # lora_a is [R, I], of stacked experts [E, R, I]
        return next(
            (shape[-2] for name, shape in self.adapters.items() if name.endswith(LORA_A_SUFFIXES)),
            None,
        )


def read_saved_shapes(named: Path, folders: Iterable[str]) -> SavedShapes | None:
    """Return the shapes in a checkpoint or the newest one of a run, None if none can be read.

    Args:
        named: A checkpoint, a run directory or a folder of checkpoints.
        folders: Names that the folder of checkpoints may have in a run directory.
    """
    checkpoint = find_newest_checkpoint(named, folders)
    try:
        listed = {} if checkpoint is None else read_manifest(checkpoint).tensors
    except ProblemsFound:
        return None  # reported when the weights are loaded
    shapes = {
        name.removeprefix(MODEL_PREFIX): tuple(map(int, filter(None, match[1].split(","))))
        for name, text in listed.items()
        if name.startswith(MODEL_PREFIX) and (match := LISTED_TENSOR.fullmatch(str(text)))
    }
    if checkpoint is None or not shapes:
        return None
    adapters = {name: shape for name, shape in shapes.items() if name.endswith(ADAPTER_SUFFIXES)}
    base = {name: shape for name, shape in shapes.items() if name not in adapters}
    return SavedShapes(checkpoint, base, adapters)


def find_newest_checkpoint(named: Path, folders: Iterable[str]) -> Path | None:
    """Return `named` if it is a checkpoint, else the newest one in it or in one of `folders`."""
    if is_checkpoint(named):
        return named
    for folder in (named, *(named / name for name in folders)):
        whole = [found for found in list_step_folders(folder).values() if is_checkpoint(found)]
        if whole:
            return whole[-1]
    return None
