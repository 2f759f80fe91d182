"""How a checkpoint becomes whole at once, or not at all: on disks by a rename, in stores, which have none, by the order of objects."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from titanrun.components.checkpoints import whole_folder
from titanrun.components.checkpoints.addresses import Address, Place
from titanrun.components.checkpoints.digested_file import FileEntry, write_file
from titanrun.components.checkpoints.manifest import MANIFEST_FILE
from titanrun.config.problems import fail

# a folder of a store with it and without a manifest is one that somebody broke off writing or deleting
UNFINISHED = "unfinished"


class Commit(Protocol):
    """Makes folders whole, and takes them away whole."""

    def begin(self, final: Place) -> Place:
        """A place to write the files of `final` into. Raises a problem `checkpoint` where `final` exists."""

    def finish(
        self, written: Place, final: Place, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """Writes the manifest last; then `final` is there."""

    def sweep(self, parent: Place, finals: re.Pattern[str]) -> None:
        """Deletes what was broken off in `parent` of folders whose name matches."""

    def remove(self, folder: Place) -> None:
        """Deletes a folder so that what a crash leaves of it is never taken for the whole."""

    def move(self, folder: Place, moved: Place) -> None:
        """Gives a folder another name."""


class OnDisk:
    """Files are written into a sibling, made durable, and the sibling is renamed."""

    def begin(self, final: Place) -> Place:
        """A temporary sibling."""
        parent = cast(Path, final).parent
        whole_folder.refuse_existing(cast(Path, final))
        if not parent.is_dir():
            parent.mkdir(parents=True)
            whole_folder.sync(parent.parent)
        return whole_folder.started(cast(Path, final))

    def finish(
        self, written: Place, final: Place, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """The manifest, and the rename."""
        write_file(written / MANIFEST_FILE, manifest.encode())
        whole_folder.commit(cast(Path, written), cast(Path, final))

    def sweep(self, parent: Place, finals: re.Pattern[str]) -> None:
        """Deletes temporary siblings."""
        if parent.is_dir():
            whole_folder.sweep(cast(Path, parent), finals)

    def remove(self, folder: Place) -> None:
        """Renames, then deletes."""
        whole_folder.remove_whole(cast(Path, folder))

    def move(self, folder: Place, moved: Place) -> None:
        """Renames."""
        cast(Path, folder).rename(cast(Path, moved))


class InStore:
    """Objects are written where they stay, after a mark that they are not all there; the manifest comes last, then the mark goes."""

    def begin(self, final: Place) -> Place:
        """`final` itself, marked."""
        folder = cast(Address, final)
        if is_unfinished(folder):
            clear(folder)
        if folder.exists():
            raise fail(
                "checkpoint",
                f"{final} exists and is never written over",
                help="move it away, or choose another folder",
            )
        (folder / UNFINISHED).write_bytes(b"no manifest.json: not a checkpoint\n")
        return folder

    def finish(
        self, written: Place, final: Place, manifest: str, files: Mapping[str, FileEntry]
    ) -> None:
        """The manifest, once the store has every byte of the others."""
        folder = cast(Address, final)
        for name, entry in files.items():
            size = (folder / name).size()
            if size != entry.size:
                raise fail(
                    "checkpoint",
                    f"{folder / name} has {size} bytes, {entry.size} were sent",
                    help="see what the store lost",
                )
        if (folder / MANIFEST_FILE).exists():
            raise fail(
                "checkpoint",
                f"{final} exists and is never written over",
                help="another process saves into the same folder",
            )
        (folder / MANIFEST_FILE).write_bytes(manifest.encode())
        (folder / UNFINISHED).unlink()

    def sweep(self, parent: Place, finals: re.Pattern[str]) -> None:
        """Deletes marked folders without a manifest."""
        if parent.is_dir():
            for folder in cast(Address, parent).iterdir():
                if finals.fullmatch(folder.name) and is_unfinished(folder):
                    clear(folder)

    def remove(self, folder: Place) -> None:
        """Marks, then deletes the manifest, then the rest."""
        (cast(Address, folder) / UNFINISHED).write_bytes(b"being deleted\n")
        clear(cast(Address, folder))

    def move(self, folder: Place, moved: Place) -> None:
        """Copies, the manifest last, then deletes: a store renames nothing."""
        source, target = cast(Address, folder), cast(Address, moved)
        (target / UNFINISHED).write_bytes(b"being copied\n")
        for file in in_order(source):
            file.copy_to(target / file.name)
        (target / UNFINISHED).unlink()
        self.remove(source)


def is_unfinished(folder: Address) -> bool:
    """Whether a folder of a store is what a crash left of one."""
    names = {file.name for file in folder.files()} if folder.is_dir() else {MANIFEST_FILE}
    return MANIFEST_FILE not in names and (UNFINISHED in names or not names)


def in_order(folder: Address) -> list[Address]:
    """The objects of a folder without the mark, the manifest last."""
    return sorted(
        (file for file in folder.files() if file.name != UNFINISHED),
        key=lambda file: file.name == MANIFEST_FILE,
    )


def clear(folder: Address) -> None:
    """Deletes a marked folder: its manifest first, its mark last."""
    names = [file.name for file in in_order(folder)]
    folder.delete([name for name in names if name == MANIFEST_FILE])
    folder.delete([name for name in names if name != MANIFEST_FILE])
    if (folder / UNFINISHED).exists():
        (folder / UNFINISHED).unlink()
    folder.delete_empty()


def commit_for(folder: Place) -> Commit:
    """How folders become whole there."""
    return OnDisk() if isinstance(folder, Path) else InStore()
