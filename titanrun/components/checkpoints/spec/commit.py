"""Atomic commits of checkpoints.

On disks by a rename, in object storage, which has none, by the order of objects.
"""

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, cast

from titanrun.components.checkpoints.spec import atomic_folder
from titanrun.components.checkpoints.spec.hashed_file import FileEntry, write_hashed_file
from titanrun.components.checkpoints.spec.manifest import MANIFEST_FILE, AnyPathT
from titanrun.components.checkpoints.spec.storage_path import AnyPath, StoragePath
from titanrun.config.problems import problem_error

# a folder in object storage with this marker and without a manifest was left by an interrupted save
# or deletion
UNFINISHED_MARKER = "unfinished"
AsideReason = Literal["damaged", "superseded", "occupied"]


class CommitStrategy(Protocol):
    """Atomic creation and deletion of folders."""

    def prepare(self, final: AnyPath) -> AnyPath:
        """Return a folder to write the files of `final` into.

        Raises:
            ProblemsFound: A problem `checkpoint` if `final` exists.
        """

    def commit(
        self, written_folder: AnyPath, final: AnyPath, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """Write the manifest last, which completes `final`."""

    def delete_leftovers(self, parent: AnyPath, name_pattern: re.Pattern[str]) -> None:
        """Delete interrupted saves in `parent` of folders whose name matches."""

    def remove(self, folder: AnyPath) -> None:
        """Delete a folder so that a crash leaves no partial folder that looks complete."""

    def move(self, folder: AnyPath, destination: AnyPath) -> None:
        """Rename a folder."""


class RenameCommit:
    """Commit by rename: files are written into a sibling, fsynced, and the sibling is renamed."""

    def prepare(self, final: AnyPath) -> AnyPath:
        """Create a temporary sibling of `final`."""
        parent = cast(Path, final).parent
        atomic_folder.check_path_is_free(cast(Path, final))
        if not parent.is_dir():
            parent.mkdir(parents=True)
            atomic_folder.fsync_path(parent.parent)
        return atomic_folder.create_temporary_folder(cast(Path, final))

    def commit(
        self, written_folder: AnyPath, final: AnyPath, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """Write the manifest and rename the folder."""
        write_hashed_file(written_folder / MANIFEST_FILE, manifest.encode())
        atomic_folder.commit_folder(cast(Path, written_folder), cast(Path, final))

    def delete_leftovers(self, parent: AnyPath, name_pattern: re.Pattern[str]) -> None:
        """Delete temporary siblings."""
        if parent.is_dir():
            atomic_folder.delete_temporary_folders(cast(Path, parent), name_pattern)

    def remove(self, folder: AnyPath) -> None:
        """Rename the folder, then delete it."""
        atomic_folder.delete_folder_atomically(cast(Path, folder))

    def move(self, folder: AnyPath, destination: AnyPath) -> None:
        """Rename the folder."""
        cast(Path, folder).rename(cast(Path, destination))


class ObjectStoreCommit:
    """Commit by a marker: objects are written in place after a marker for unfinished folders.

    The manifest is written last, then the marker is deleted.
    """

    def prepare(self, final: AnyPath) -> AnyPath:
        """Mark `final` as unfinished and return it."""
        folder = cast(StoragePath, final)
        if is_unfinished_folder(folder):
            delete_unfinished_folder(folder)
        if folder.exists():
            raise problem_error(
                "checkpoint",
                f"{final} already exists and is never overwritten",
                hint="move it away, or choose another folder",
            )
        (folder / UNFINISHED_MARKER).write_bytes(b"no manifest.json: not a checkpoint\n")
        return folder

    def commit(
        self, written_folder: AnyPath, final: AnyPath, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """Write the manifest after checking the size of all other objects; delete the marker."""
        folder = cast(StoragePath, final)
        for name, entry in files.items():
            size = (folder / name).get_size()
            if size != entry.size:
                raise problem_error(
                    "checkpoint",
                    f"{folder / name} has {size:,} bytes, {entry.size:,} were sent",
                    hint="check the object store for lost data",
                )
        if (folder / MANIFEST_FILE).exists():
            raise problem_error(
                "checkpoint",
                f"{final} already exists and is never overwritten",
                hint="another process saves into the same folder",
            )
        (folder / MANIFEST_FILE).write_bytes(manifest.encode())
        (folder / UNFINISHED_MARKER).unlink()

    def delete_leftovers(self, parent: AnyPath, name_pattern: re.Pattern[str]) -> None:
        """Delete marked folders without a manifest."""
        if parent.is_dir():
            for folder in cast(StoragePath, parent).iterdir():
                if name_pattern.fullmatch(folder.name) and is_unfinished_folder(folder):
                    delete_unfinished_folder(folder)

    def remove(self, folder: AnyPath) -> None:
        """Mark the folder, delete the manifest, then the rest."""
        (cast(StoragePath, folder) / UNFINISHED_MARKER).write_bytes(b"being deleted\n")
        delete_unfinished_folder(cast(StoragePath, folder))

    def move(self, folder: AnyPath, destination: AnyPath) -> None:
        """Copy, the manifest last, then delete: object storage has no rename."""
        source, target = cast(StoragePath, folder), cast(StoragePath, destination)
        if source.is_file():
            source.copy_to(target)
            source.unlink()
            return
        (target / UNFINISHED_MARKER).write_bytes(b"being copied\n")
        for file in list_manifest_last(source):
            file.copy_to(target / file.name)
        (target / UNFINISHED_MARKER).unlink()
        self.remove(source)


def is_unfinished_folder(folder: StoragePath) -> bool:
    """Return whether a folder in object storage is unfinished, as after a crash."""
    names = {file.name for file in folder.list_files()} if folder.is_dir() else {MANIFEST_FILE}
    return MANIFEST_FILE not in names and (UNFINISHED_MARKER in names or not names)


def list_manifest_last(folder: StoragePath) -> list[StoragePath]:
    """Return the objects of a folder without the marker, the manifest last."""
    return sorted(
        (file for file in folder.list_files() if file.name != UNFINISHED_MARKER),
        key=lambda file: file.name == MANIFEST_FILE,
    )


def delete_unfinished_folder(folder: StoragePath) -> None:
    """Delete a marked folder, its manifest first, its marker last."""
    names = [file.name for file in list_manifest_last(folder)]
    folder.delete_files([name for name in names if name == MANIFEST_FILE])
    folder.delete_files([name for name in names if name != MANIFEST_FILE])
    if (folder / UNFINISHED_MARKER).exists():
        (folder / UNFINISHED_MARKER).unlink()
    folder.delete_empty_folder()


def get_commit_strategy(folder: AnyPath) -> CommitStrategy:
    """Return the commit strategy for a folder."""
    return RenameCommit() if isinstance(folder, Path) else ObjectStoreCommit()


def get_name_aside(folder: AnyPathT, reason: AsideReason) -> AnyPathT:
    """Return a new name next to a folder that is set aside."""
    return folder.with_name(f"{folder.name}.{reason}-{secrets.token_hex(4)}")


def is_occupied(path: AnyPath) -> bool:
    """Return whether anything has this name, also a link to nothing."""
    return path.exists() or (isinstance(path, Path) and path.is_symlink())


def check_can_be_folder(path: AnyPath) -> None:
    """Raise a problem `checkpoint` if a file, or a link to nothing, has the name of a folder."""
    if is_occupied(path) and not path.is_dir():
        raise problem_error(
            "checkpoint", f"{path} is not a folder", hint="move it away: checkpoints go there"
        )
