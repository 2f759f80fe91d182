"""The folder that holds a run's checkpoints: it saves a new one whole, finds those that are, and drops what nobody wants to keep."""

import hashlib
import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import torch

from titanrun.components.checkpoints.addresses import Place
from titanrun.components.checkpoints.checkpoint import (
    Checkpoint,
    Snapshot,
    tensor_files,
    write_files,
)
from titanrun.components.checkpoints.commits import Commit, commit_for
from titanrun.components.checkpoints.digested_file import FileEntry
from titanrun.components.checkpoints.manifest import (
    MANIFEST_FILE,
    STEP_FOLDER,
    Manifest,
    Verify,
    damage,
    manifest_text,
    step_folders,
)
from titanrun.components.checkpoints.retention import Retention
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.distributed.agreement import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run, each in a folder `step-N`. Every rank of `ranks` calls each method.

    Args:
        folder: where they lie; made at the first save.
        retention: what stays after a save.
        ranks: who saves together; the first of them decides, renames and deletes.
    """

    folder: Place
    retention: Retention = field(default_factory=Retention)
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def commit(self) -> Commit:
        """How a checkpoint becomes whole there."""
        return commit_for(self.folder)

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        return self.ranks.from_first(
            lambda: [
                step for step in step_folders(self.folder) if self.checkpoint(step).is_complete()
            ]
        )

    def named_steps(self) -> list[int]:
        """The steps of all folders that bear a checkpoint's name, ascending, whole or not."""
        return self.ranks.from_first(lambda: list(step_folders(self.folder)))

    def latest(self) -> int | None:
        """The highest step that has a complete checkpoint; None where there is none."""
        return max(self.steps(), default=None)

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint of `step`, to be read."""
        return Checkpoint(self.folder / f"step-{step}")

    def manifest(self, step: int) -> Manifest:
        """The manifest of `step`, as the first rank reads it."""
        return self.ranks.from_first(self.checkpoint(step).manifest)

    def damage(self, step: int, policy: Verify) -> list[str]:
        """Why the checkpoint of `step` cannot be trusted; empty where it can. The ranks share the reading."""
        folder = self.checkpoint(step).folder
        try:
            manifest = self.manifest(step)
        except ProblemsFound as error:
            return [problem.message for problem in error.problems]
        if manifest.step != step:
            return [f"its {MANIFEST_FILE} is that of step {manifest.step}"]
        parts = self.ranks.together(
            lambda: damage(folder, manifest, policy, share=self.ranks.rank, shares=self.ranks.count)
        )
        return [reason for part in parts for reason in part]

    def save(self, snapshot: Snapshot) -> None:
        """Save a checkpoint so that it is there whole or not at all, then drop what `retention` leaves over.

        Raises a problem `checkpoint` where the step has a folder already.
        """
        final = self.checkpoint(snapshot.step).folder
        temporary = self.ranks.from_first(lambda: self._open(final))
        try:
            parts = self.ranks.together(lambda: write_files(temporary, snapshot, self.ranks))
            entries = {name: entry for part in parts for name, entry in part.items()}
            self.ranks.from_first(lambda: self._finish(temporary, final, snapshot, entries))
        finally:
            self.ranks.from_first(self._sweep)
        self.ranks.from_first(self._drop)

    def set_aside(self, step: int, why: Literal["damaged", "superseded"]) -> Place:
        """Takes the name of a checkpoint from it, so that the run can save that step anew; nothing is deleted. Gives the new one."""
        folder = self.checkpoint(step).folder

        def move() -> Place:
            moved = folder.with_name(f"{folder.name}.{why}-{secrets.token_hex(4)}")
            self.commit.move(folder, moved)
            return moved

        return self.ranks.from_first(move)

    def remove(self, step: int) -> None:
        """Deletes a checkpoint, its name first."""
        self.ranks.from_first(lambda: self.commit.remove(self.checkpoint(step).folder))

    def _open(self, final: Place) -> Place:
        self._sweep()
        return self.commit.begin(final)

    def _finish(
        self, written: Place, final: Place, snapshot: Snapshot, entries: Mapping[str, FileEntry]
    ) -> None:
        manifest = manifest_of(written, snapshot, entries)
        self.commit.finish(written, final, manifest_text(manifest), manifest.files)

    def _sweep(self) -> None:
        self.commit.sweep(self.folder, STEP_FOLDER)

    def _drop(self) -> None:
        found = {}
        for step in step_folders(self.folder):
            try:
                found[step] = self.checkpoint(step).manifest()
            except ProblemsFound:
                continue  # not to be counted among those that stay, nor deleted: somebody may want to look at it
        for step in self.retention.leaves_over(found):
            self.commit.remove(self.checkpoint(step).folder)


def nothing_to_go_on_from(folder: Place, reasons: Mapping[int, list[str]]) -> ProblemsFound:
    """The problems of a folder in which no checkpoint can be used, one for each."""
    help = f"restore one from a copy, or move {folder} away to start from the beginning"
    return ProblemsFound(
        Problem(
            "checkpoint",
            f"{folder / f'step-{step}'} cannot be used: {'; '.join(found)}",
            help=help if step == min(reasons) else None,
        )
        for step, found in sorted(reasons.items(), reverse=True)
    )


def manifest_of(written: Place, snapshot: Snapshot, entries: Mapping[str, FileEntry]) -> Manifest:
    """The manifest of the files that were written."""
    saved = tensor_files().read_layouts(written)
    return Manifest(
        step=snapshot.step,
        holds=snapshot.holds,
        layout=dict(snapshot.layout),
        versions=package_versions(),
        recipe=hashlib.sha256(snapshot.resolved.encode()).hexdigest(),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tensors={name: str(saved[name]) for name in sorted(saved)},
        files=dict(sorted(entries.items())),
        validation_loss=snapshot.validation_loss,
    )


def package_versions() -> dict[str, str]:
    """What wrote a checkpoint."""
    try:
        own = version("titanrun")
    except PackageNotFoundError:
        own = "unknown"
    return {"titanrun": own, "torch": torch.__version__, "python": platform.python_version()}
