"""One saved checkpoint: a folder of tensors, with the run's state, its random states and its resolved recipe beside them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from titanrun.components.checkpoints.addresses import Place
from titanrun.components.checkpoints.digested_file import FileEntry, write_file
from titanrun.components.checkpoints.layout import Layout, differences, layouts
from titanrun.components.checkpoints.manifest import (
    MANIFEST_FILE,
    Holds,
    Manifest,
    damaged,
    read_manifest,
)
from titanrun.components.checkpoints.random_files import read_random_states, write_random_states
from titanrun.config.problems import fail
from titanrun.distributed.agreement import Ranks

STATE_FILE = "state.json"
RESOLVED_FILE = "resolved.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run after one of its steps, as a checkpoint holds it.

    Args:
        step: optimizer steps done.
        holds: all of the run's state, or its weights only.
        tensors: weights and optimizer state by name, each of any shape and type; of a sharded one, this rank's part.
        state: the rest of the run's state as JSON data without NaN, the same on every rank; `step` is added.
        rng: the tensors of this rank's random state.
        resolved: the text of resolved.yaml.
        layout: the ranks that save it, and how they split the model.
        validation_loss: measured after that step, if it was.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    rng: Mapping[str, Tensor]
    resolved: str
    holds: Holds = "everything"
    layout: Mapping[str, Any] = field(default_factory=dict)
    validation_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What may differ between the tensors that were saved and those that are wanted.

    Args:
        extra: saved tensors that nobody wants are passed over.
        cast: a tensor saved in another dtype is converted.
        ignore_prefix: saved tensors whose name begins so are passed over, as `optimizer.` where only weights are wanted.
        elsewhere: names of saved tensors that other ranks want.
    """

    extra: bool = False
    cast: bool = False
    ignore_prefix: str | None = None
    elsewhere: frozenset[str] = frozenset()

    def passes_over(self, name: str) -> bool:
        """Whether a saved tensor of that name is none of this rank's business."""
        return name in self.elsewhere or (
            self.ignore_prefix is not None and name.startswith(self.ignore_prefix)
        )


EXACT = Tolerance()


class Checkpoint:
    """A checkpoint folder, to be read. Everything that is wrong with it is a problem `checkpoint`."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder

    def is_complete(self) -> bool:
        """Whether the folder holds a checkpoint: the manifest is the last file that was written."""
        return (self.folder / MANIFEST_FILE).is_file()

    def manifest(self) -> Manifest:
        """What the checkpoint holds."""
        return read_manifest(self.folder)

    def load_tensors(
        self,
        into: Mapping[str, Tensor],
        *,
        tolerance: Tolerance = EXACT,
        ranks: Ranks | None = None,
    ) -> None:
        """Fill `into` in place, bit by bit, after a look that names, shapes and types are those that were saved.

        Args:
            into: the tensors to fill, by name.
            tolerance: what may differ; by default nothing.
            ranks: who loads together, each rank its part; None loads alone.
        """
        self.manifest()
        saved = {
            name: layout
            for name, layout in self.layouts().items()
            if not tolerance.passes_over(name)
        }
        wanted = layouts(into)
        cast = {
            name: _like(into[name], saved[name])
            for name in wanted
            if tolerance.cast and _is_cast(saved.get(name), wanted[name])
        }
        compared = {
            name: layout for name, layout in saved.items() if name in wanted or not tolerance.extra
        }
        found = differences(compared, wanted | layouts(cast))
        if found:
            help = f"{RESOLVED_FILE} in that folder describes the run that saved it"
            raise fail(
                "checkpoint", f"{self.folder} does not fit this run: {'; '.join(found)}", help=help
            )
        tensor_files().read_tensors(self.folder, {**into, **cast}, ranks)
        for name, tensor in cast.items():
            into[name].detach().copy_(tensor)

    def layouts(self) -> dict[str, Layout]:
        """Shape and type of every tensor by name."""
        found: dict[str, Layout] = tensor_files().read_layouts(self.folder)
        return found

    def load_state(self) -> dict[str, Any]:
        """What was saved as the run's state, with `step`."""
        self.manifest()
        path = self.folder / STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        except (OSError, ValueError, RecursionError) as error:
            raise damaged(path, str(error)) from error
        if not isinstance(state, dict) or not isinstance(state.get("step"), int):
            raise damaged(path, "it names no step")
        return state

    def load_rng(self, rank: int = 0) -> dict[str, Tensor]:
        """The tensors of the random state of one rank."""
        self.manifest()
        return read_random_states(self.folder, rank)

    def load_resolved(self) -> str:
        """The text of the resolved recipe that was running."""
        self.manifest()
        path = self.folder / RESOLVED_FILE
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise damaged(path, str(error)) from error


def write_files(folder: Place, snapshot: Snapshot, ranks: Ranks) -> dict[str, FileEntry]:
    """Write this rank's files of a checkpoint into `folder`; the manifest is not one of them. Gives them; they are on disk then."""
    text = json.dumps({**snapshot.state, "step": snapshot.step}, allow_nan=False, indent=1) + "\n"
    entries: dict[str, FileEntry] = tensor_files().write_tensors(folder, snapshot.tensors, ranks)
    entries |= write_random_states(folder, ranks.rank, snapshot.rng)
    if ranks.rank == 0:
        entries[RESOLVED_FILE] = write_file(folder / RESOLVED_FILE, snapshot.resolved.encode())
        entries[STATE_FILE] = write_file(folder / STATE_FILE, text.encode())
    return entries


def tensor_files() -> ModuleType:
    """The module that reads and writes tensor files, imported at the first call: it takes a second."""
    return import_module("titanrun.components.checkpoints.dcp")


def _is_cast(saved: Layout | None, wanted: Layout) -> bool:
    return saved is not None and saved.shape == wanted.shape and saved.dtype != wanted.dtype


def _like(tensor: Tensor, saved: Layout) -> Tensor:
    return tensor.detach().new_empty(tensor.shape, dtype=saved.dtype)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
