"""Checkpoint folder of a run: atomic saves, listing and retention."""

import hashlib
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch

from titanrun.components.checkpoints.checkpoint_reader import (
    CheckpointReader,
    Snapshot,
    import_dcp_io,
    write_checkpoint_files,
)
from titanrun.components.checkpoints.spec.commit import (
    AsideReason,
    CommitStrategy,
    get_commit_strategy,
    get_name_aside,
    is_occupied,
)
from titanrun.components.checkpoints.spec.hashed_file import FileEntry
from titanrun.components.checkpoints.spec.manifest import (
    MANIFEST_FILE,
    STEP_FOLDER,
    Manifest,
    format_manifest,
    is_checkpoint,
    list_step_folders,
    try_read_manifest,
)
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.checkpoints.spec.verification import VerifyMode, find_damaged_files
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.version import VERSION
from titanrun.distributed.object_collectives import RankGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """Checkpoints of one run, each in a folder `step-N`.

    Collective: all ranks of `ranks` must call each method.

    Args:
        folder: Folder of the checkpoints, created at the first save.
        retention: Which checkpoints to keep after a save.
        ranks: Ranks that save together. The main rank decides, renames and deletes.
    """

    folder: AnyPath
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    ranks: RankGroup = field(default_factory=RankGroup)

    @property
    def commit_strategy(self) -> CommitStrategy:
        """How checkpoints are committed there."""
        return get_commit_strategy(self.folder)

    def list_complete_steps(self) -> list[int]:
        """Return the steps of all complete checkpoints, ascending."""
        return self.ranks.broadcast_from_main(
            lambda: [
                step
                for step in list_step_folders(self.folder)
                if self.get_checkpoint(step).is_complete()
            ]
        )

    def list_all_steps(self) -> list[int]:
        """Return the steps of all folders with a checkpoint's name, complete or not, ascending."""
        return self.ranks.broadcast_from_main(lambda: list(list_step_folders(self.folder)))

    def find_latest_step(self) -> int | None:
        """Return the highest step with a complete checkpoint, None if there is none."""
        return max(self.list_complete_steps(), default=None)

    def get_checkpoint(self, step: int) -> CheckpointReader:
        """Return the reader of the checkpoint of `step`."""
        return CheckpointReader(self.folder / f"step-{step}")

    def load_manifest(self, step: int) -> Manifest:
        """Return the manifest of `step`, as the main rank reads it."""
        return self.ranks.broadcast_from_main(self.get_checkpoint(step).load_manifest)

    def find_damage(self, step: int, policy: VerifyMode) -> list[str]:
        """Return why the checkpoint of `step` cannot be trusted, empty if it can.

        Each rank reads a share of the files.

        Raises:
            ProblemsFound: A problem `checkpoint` if another version of titanrun wrote it.
        """
        folder = self.get_checkpoint(step).folder
        manifest, reasons = self.ranks.broadcast_from_main(lambda: try_read_manifest(folder))
        if manifest is None:
            return reasons
        if manifest.step != step:
            return [f"its {MANIFEST_FILE} is that of step {manifest.step}"]
        parts = self.ranks.all_gather_results(
            lambda: find_damaged_files(
                folder, manifest, policy, shard_index=self.ranks.rank, num_shards=self.ranks.size
            )
        )
        return [reason for part in parts for reason in part]

    def save(self, snapshot: Snapshot) -> None:
        """Save a checkpoint atomically, then delete those that `retention` does not keep.

        Raises:
            ProblemsFound: A problem `checkpoint` if the step already has a folder.
        """
        final = self.get_checkpoint(snapshot.step).folder
        temporary = self.ranks.broadcast_from_main(lambda: self._prepare_save(final))
        try:
            parts = self.ranks.all_gather_results(
                lambda: write_checkpoint_files(temporary, snapshot, self.ranks)
            )
            entries = {name: entry for part in parts for name, entry in part.items()}
            self.ranks.broadcast_from_main(
                lambda: self._commit_save(temporary, final, snapshot, entries)
            )
        finally:
            self.ranks.broadcast_from_main(self._delete_leftovers)
        self.ranks.broadcast_from_main(self._apply_retention)

    def set_aside(self, step: int, reason: AsideReason) -> AnyPath:
        """Rename a checkpoint, so that the run can save that step again; return the new path.

        Nothing is deleted.
        """
        folder = self.get_checkpoint(step).folder

        def move() -> AnyPath:
            moved = get_name_aside(folder, reason)
            self.commit_strategy.move(folder, moved)
            return moved

        return self.ranks.broadcast_from_main(move)

    def remove(self, step: int) -> None:
        """Delete a checkpoint, after renaming it."""
        self.ranks.broadcast_from_main(
            lambda: self.commit_strategy.remove(self.get_checkpoint(step).folder)
        )

    def _prepare_save(self, final: AnyPath) -> AnyPath:
        self._delete_leftovers()
        self._free_name(final)
        return self.commit_strategy.prepare(final)

    def _free_name(self, final: AnyPath) -> None:
        """Rename what has the name of the checkpoint to save and is not a checkpoint."""
        if is_checkpoint(final) or not is_occupied(final):
            return
        moved = get_name_aside(final, "occupied")
        self.commit_strategy.move(final, moved)
        log.warning("%s is not a checkpoint: renamed to %s", final, moved)

    def _commit_save(
        self,
        written_folder: AnyPath,
        final: AnyPath,
        snapshot: Snapshot,
        entries: Mapping[str, FileEntry],
    ) -> None:
        manifest = build_manifest(written_folder, snapshot, entries)
        self.commit_strategy.commit(
            written_folder, final, format_manifest(manifest), manifest.files
        )

    def _delete_leftovers(self) -> None:
        self.commit_strategy.delete_leftovers(self.folder, STEP_FOLDER)

    def _apply_retention(self) -> None:
        found = {}
        for step in list_step_folders(self.folder):
            try:
                found[step] = self.get_checkpoint(step).load_manifest()
            except ProblemsFound:
                continue  # neither counted as kept nor deleted: a person may want to inspect it
        for step in self.retention.select_steps_to_delete(found):
            self.commit_strategy.remove(self.get_checkpoint(step).folder)


def no_usable_checkpoint_error(folder: AnyPath, reasons: Mapping[int, list[str]]) -> ProblemsFound:
    """Build the problems of a folder without a usable checkpoint, one per checkpoint."""
    hint = f"restore one from a copy, or move {folder} away to start from the beginning"
    return ProblemsFound(
        Problem(
            "checkpoint",
            f"{folder / f'step-{step}'} cannot be used: {'; '.join(found)}",
            hint=hint if step == min(reasons) else None,
        )
        for step, found in sorted(reasons.items(), reverse=True)
    )


def build_manifest(
    written_folder: AnyPath, snapshot: Snapshot, entries: Mapping[str, FileEntry]
) -> Manifest:
    """Build the manifest of the written files."""
    saved = import_dcp_io().read_tensor_metadata(written_folder)
    return Manifest(
        step=snapshot.step,
        holds=snapshot.holds,
        layout=dict(snapshot.layout),
        versions=get_writer_versions(),
        recipe=hashlib.sha256(snapshot.resolved_yaml.encode()).hexdigest(),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tensors={name: str(saved[name]) for name in sorted(saved)},
        files=dict(sorted(entries.items())),
        validation_loss=snapshot.validation_loss,
        run=snapshot.run,
    )


def get_writer_versions() -> dict[str, str]:
    """Return the versions of the packages that write a checkpoint."""
    return {"titanrun": VERSION, "torch": torch.__version__, "python": platform.python_version()}
