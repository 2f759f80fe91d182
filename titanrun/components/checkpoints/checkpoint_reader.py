"""One saved checkpoint: tensors, state of the run, RNG states and resolved recipe."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor

from titanrun.components.checkpoints.rng_files import read_rng_states, write_rng_states
from titanrun.components.checkpoints.spec.hashed_file import FileEntry, write_hashed_file
from titanrun.components.checkpoints.spec.manifest import (
    MANIFEST_FILE,
    CheckpointScope,
    Manifest,
    corrupt_file_error,
    read_manifest,
)
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.checkpoints.spec.verification import RESOLVED_FILE as RESOLVED_FILE
from titanrun.components.checkpoints.spec.verification import STATE_FILE as STATE_FILE
from titanrun.components.checkpoints.spec.verification import read_state
from titanrun.components.checkpoints.tensor_metadata import (
    DIFFERENT_DTYPE,
    TensorMetadata,
    find_tensor_mismatches,
    get_tensor_metadata,
)
from titanrun.config.problems import problem_error
from titanrun.distributed.object_collectives import RankGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a run after one of its steps, as a checkpoint holds it.

    Args:
        step: Number of completed optimizer steps.
        tensors: Weights and optimizer state by name, of any shape and dtype. Of a sharded tensor,
            this rank's shard.
        state: Rest of the run's state as JSON data without NaN, equal on all ranks. `step` is
            added.
        rng: Tensors of this rank's RNG states.
        resolved_yaml: Text of resolved.yaml.
        holds: Whether it has the whole state of the run or its weights only.
        layout: Number of ranks, their device, and how they shard the model.
        validation_loss: Validation loss after that step, if measured.
        run: Id of the run, None if it has none.
        assets: Files that go with the weights, such as the tokenizer's, by name.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    rng: Mapping[str, Tensor]
    resolved_yaml: str
    holds: CheckpointScope = "everything"
    layout: Mapping[str, Any] = field(default_factory=dict)
    validation_loss: float | None = None
    run: str | None = None
    assets: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTolerance:
    """Allowed differences between saved and wanted tensors.

    Args:
        allows_extra: Whether to ignore saved tensors that are not wanted.
        allows_cast: Whether to convert tensors saved in another dtype.
        ignore_prefix: Prefix of names of saved tensors to ignore, such as `optimizer.` if only
            weights are wanted.
        names_on_other_ranks: Names of saved tensors that other ranks want.
    """

    allows_extra: bool = False
    allows_cast: bool = False
    ignore_prefix: str | None = None
    names_on_other_ranks: frozenset[str] = frozenset()

    def is_ignored(self, name: str) -> bool:
        """Return whether to ignore a saved tensor of that name on this rank."""
        return name in self.names_on_other_ranks or (
            self.ignore_prefix is not None and name.startswith(self.ignore_prefix)
        )


EXACT_MATCH = LoadTolerance()


class CheckpointReader:
    """Reader of a checkpoint folder. All errors are problems with code `checkpoint`."""

    def __init__(self, folder: AnyPath) -> None:
        self.folder = folder

    def is_complete(self) -> bool:
        """Return whether the folder holds a checkpoint: the manifest is written last."""
        return (self.folder / MANIFEST_FILE).is_file()

    def load_manifest(self) -> Manifest:
        """Return the manifest of the checkpoint."""
        return read_manifest(self.folder)

    def load_tensors(
        self,
        into: Mapping[str, Tensor],
        *,
        tolerance: LoadTolerance = EXACT_MATCH,
        ranks: RankGroup | None = None,
    ) -> None:
        """Fill `into` in place, bit by bit, after comparing names, shapes and dtypes.

        Args:
            into: Tensors to fill, by name.
            tolerance: Allowed differences, by default none.
            ranks: Ranks that load together, each its shard. None loads without other ranks.
        """
        self.load_manifest()
        saved = {
            name: layout
            for name, layout in self.load_tensor_metadata().items()
            if not tolerance.is_ignored(name)
        }
        wanted = get_tensor_metadata(into)
        cast = {
            name: _empty_with_dtype(into[name], saved[name])
            for name in wanted
            if tolerance.allows_cast and _needs_cast(saved.get(name), wanted[name])
        }
        compared = {
            name: layout
            for name, layout in saved.items()
            if name in wanted or not tolerance.allows_extra
        }
        found = find_tensor_mismatches(compared, wanted | get_tensor_metadata(cast))
        if found:
            hint = f"{RESOLVED_FILE} in that folder describes the run that saved it"
            if all(text.startswith(DIFFERENT_DTYPE) for text in found):
                hint = "set checkpoint.allow_cast: true to convert them"
            raise problem_error(
                "checkpoint", f"{self.folder} does not fit this run: {'; '.join(found)}", hint=hint
            )
        import_dcp_io().read_tensors(self.folder, {**into, **cast}, ranks)
        for name, tensor in cast.items():
            into[name].detach().copy_(tensor)

    def load_tensor_metadata(self) -> dict[str, TensorMetadata]:
        """Return shape and dtype of every tensor by name."""
        found: dict[str, TensorMetadata] = import_dcp_io().read_tensor_metadata(self.folder)
        return found

    def load_state(self) -> dict[str, Any]:
        """Return the saved state of the run, with `step`."""
        self.load_manifest()
        return read_state(self.folder)

    def load_rng_states(self, rank: int = 0) -> dict[str, Tensor]:
        """Return the tensors of the RNG states of one rank."""
        self.load_manifest()
        return read_rng_states(self.folder, rank)

    def load_resolved_yaml(self) -> str:
        """Return the text of the resolved recipe of the run."""
        self.load_manifest()
        path = self.folder / RESOLVED_FILE
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise corrupt_file_error(path, str(error)) from error


@contextmanager
def name_damaged_state(checkpoint: CheckpointReader) -> Iterator[None]:
    """Raise a problem `checkpoint` where an entry of state.json is missing or of another type."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it is not complete enough to resume from ({type(error).__name__}: {error})"
        raise corrupt_file_error(checkpoint.folder / STATE_FILE, reason) from error


def write_checkpoint_files(
    folder: AnyPath, snapshot: Snapshot, ranks: RankGroup
) -> dict[str, FileEntry]:
    """Write this rank's files of a checkpoint into `folder`, without the manifest.

    Returns the files, which are on disk then.
    """
    text = json.dumps({**snapshot.state, "step": snapshot.step}, allow_nan=False, indent=1) + "\n"
    entries: dict[str, FileEntry] = import_dcp_io().write_tensors(folder, snapshot.tensors, ranks)
    entries |= write_rng_states(folder, ranks.rank, snapshot.rng)
    if ranks.rank == 0:
        entries[RESOLVED_FILE] = write_hashed_file(
            folder / RESOLVED_FILE, snapshot.resolved_yaml.encode()
        )
        entries[STATE_FILE] = write_hashed_file(folder / STATE_FILE, text.encode())
        entries |= {
            name: write_hashed_file(folder / name, content)
            for name, content in snapshot.assets.items()
        }
    return entries


def import_dcp_io() -> ModuleType:
    """Return the module that reads and writes tensor files.

    It is imported at the first call, since that takes a second.
    """
    return import_module("titanrun.components.checkpoints.dcp_io")


def _needs_cast(saved: TensorMetadata | None, wanted: TensorMetadata) -> bool:
    return saved is not None and saved.shape == wanted.shape and saved.dtype != wanted.dtype


def _empty_with_dtype(tensor: Tensor, saved: TensorMetadata) -> Tensor:
    return tensor.detach().new_empty(tensor.shape, dtype=saved.dtype)
