"""One saved checkpoint: a folder of tensors, with the run's state, its random state and its resolved recipe beside them."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.layout import differences, layouts
from titanrun.config.problems import ProblemsFound, fail

STATE_FILE = "state.json"
RNG_FILE = "rng.safetensors"
RESOLVED_FILE = "resolved.yaml"

# raised when the files change so that an older titanrun would misread them
FORMAT = 1


class Checkpoint:
    """A checkpoint folder, to be read. Everything that is wrong with it is a problem `checkpoint`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def is_complete(self) -> bool:
        """Whether the folder holds a checkpoint; its state is the last file that was written."""
        return (self.folder / STATE_FILE).is_file()

    def load_tensors(self, into: Mapping[str, Tensor], *, ignore_prefix: str | None = None) -> None:
        """Fill `into` in place, bit by bit, after a look that names, shapes and types are exactly those that were saved.

        Args:
            into: the tensors to fill, by name.
            ignore_prefix: saved tensors whose name begins so are left alone, as `optimizer.` where only weights are wanted.
        """
        self._require_complete()
        saved = tensor_files().read_layouts(self.folder)
        if ignore_prefix is not None:
            saved = {name: layout for name, layout in saved.items() if not name.startswith(ignore_prefix)}
        found = differences(saved, layouts(into))
        if found:
            raise fail(
                "checkpoint",
                f"{self.folder} does not fit this run: {'; '.join(found)}",
                help=f"{RESOLVED_FILE} in that folder describes the run that saved it",
            )
        tensor_files().read_tensors(self.folder, into)

    def load_state(self) -> dict[str, Any]:
        """What was saved as the run's state, with `step`."""
        self._require_complete()
        path = self.folder / STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        except (OSError, ValueError) as error:
            raise self._damaged(STATE_FILE, error) from error
        if not isinstance(state, dict) or not isinstance(state.get("step"), int):
            raise fail("checkpoint", f"{path} is damaged: it names no step")
        if state.pop("format", None) != FORMAT:
            raise fail("checkpoint", f"{path} was written by another version of titanrun", help="use the version that saved it")
        return state

    def load_rng(self) -> dict[str, Tensor]:
        """The tensors of the random state."""
        self._require_complete()
        try:
            return safetensors.torch.load_file(self.folder / RNG_FILE)
        except (OSError, SafetensorError) as error:
            raise self._damaged(RNG_FILE, error) from error

    def load_resolved(self) -> str:
        """The text of the resolved recipe that was running."""
        self._require_complete()
        try:
            return (self.folder / RESOLVED_FILE).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise self._damaged(RESOLVED_FILE, error) from error

    def _require_complete(self) -> None:
        if not self.is_complete():
            reason = f"it has no {STATE_FILE}" if self.folder.is_dir() else "there is no such folder"
            raise fail("checkpoint", f"{self.folder} is no checkpoint: {reason}", help="name a folder step-N that titanrun saved")

    def _damaged(self, file: str, error: Exception) -> ProblemsFound:
        return fail("checkpoint", f"{self.folder / file} is damaged: {error}")


def write_files(
    folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], rng: Mapping[str, Tensor], resolved: str
) -> None:
    """Write the files of a checkpoint into `folder`, the state last."""
    tensor_files().write_tensors(folder, tensors)
    safetensors.torch.save_file(dict(rng), folder / RNG_FILE)
    (folder / RESOLVED_FILE).write_bytes(resolved.encode())
    text = json.dumps({**state, "format": FORMAT, "step": step}, allow_nan=False, indent=1)
    (folder / STATE_FILE).write_text(text + "\n", encoding="utf-8")


def tensor_files() -> ModuleType:
    """The module that reads and writes tensor files, imported at the first call: it takes a second."""
    return import_module("titanrun.components.checkpoints.dcp")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
