"""The folder that holds a run's checkpoints: it saves a new one whole, finds the latest and drops the oldest."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from titanrun.components.checkpoints.checkpoint import Checkpoint, write_files
from titanrun.components.checkpoints.whole_folder import remove_whole, sweep, sync, written_whole
from titanrun.config.problems import fail

STEP_FOLDER = re.compile(r"step-(0|[1-9][0-9]*)")


class CheckpointStore:
    """The checkpoints of one run, each in a folder `step-N`.

    Args:
        folder: where they lie; made at the first save.
        keep_latest_k: how many stay after a save; 0 keeps all.
    """

    def __init__(self, folder: Path, keep_latest_k: int = 0) -> None:
        self.folder = folder
        self.keep_latest_k = keep_latest_k

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        if not self.folder.is_dir():
            return []
        matches = (STEP_FOLDER.fullmatch(entry.name) for entry in self.folder.iterdir())
        steps = sorted(int(match[1]) for match in matches if match)
        return [step for step in steps if self.checkpoint(step).is_complete()]

    def latest(self) -> int | None:
        """The highest step that has a complete checkpoint; None where there is none."""
        return max(self.steps(), default=None)

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of `step`, to be read."""
        return Checkpoint(self.folder / f"step-{step}")

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], rng: Mapping[str, Tensor], resolved: str) -> None:
        """Save a checkpoint so that it is there whole or not at all, then drop what `keep_latest_k` leaves over.

        Args:
            step: optimizer steps done.
            tensors: weights and optimizer state by name, each of any shape and type.
            state: the rest of the run's state, as JSON data without NaN; `step` is added.
            rng: the tensors of the random state.
            resolved: the text of resolved.yaml.

        Raises a problem `checkpoint` where the step has a folder already.
        """
        final = self.checkpoint(step).folder
        if final.exists():
            raise fail("checkpoint", f"{final} exists and is never written over", help="move it away, or train into another folder")
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True)
            sync(self.folder.parent)
        sweep(self.folder, STEP_FOLDER)
        with written_whole(final) as temporary:
            write_files(temporary, step, tensors, state, rng, resolved)
        self._drop_oldest()

    def load_tensors(self, step: int, into: Mapping[str, Tensor]) -> None:
        """Fill `into` in place from the checkpoint of `step`; see Checkpoint.load_tensors."""
        self.checkpoint(step).load_tensors(into)

    def load_state(self, step: int) -> dict[str, Any]:
        """The state that was saved at `step`."""
        return self.checkpoint(step).load_state()

    def load_rng(self, step: int) -> dict[str, Tensor]:
        """The tensors of the random state that was saved at `step`."""
        return self.checkpoint(step).load_rng()

    def _drop_oldest(self) -> None:
        if self.keep_latest_k:
            for step in self.steps()[: -self.keep_latest_k]:
                remove_whole(self.checkpoint(step).folder)
