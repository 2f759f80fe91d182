"""Where pictures and their captions are: files beside each other in a folder, or members of tar files (webdataset)."""

import hashlib
import io
import logging
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from titanrun.components.data.source_files import (
    CAPTION,
    PICTURES,
    TAR_FILES,
    find_files,
    no_tar_file,
)
from titanrun.components.data.watched_file import HELP, FileState, state_of
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

log = logging.getLogger(__name__)

# where the bytes of a sample's picture and caption are: number of the file, first byte, how many
SPANS = np.dtype(
    [
        (f"{what}_{part}", "<i8")
        for what in ("picture", "caption")
        for part in ("file", "start", "size")
    ]
)
Span = tuple[int, int, int]
SIGN_EVERY = 1000
# bytes that nearly always say how large a picture is
HEAD = 2**16


@dataclass(frozen=True, slots=True)
class Samples:
    """Pictures with captions, by number.

    Args:
        files: that hold them.
        states: what these were when they were looked through.
        spans: of each sample, of the dtype SPANS.
    """

    files: Sequence[Path]
    states: Sequence[FileState | None]
    spans: NDArray[Any]

    def __len__(self) -> int:
        return len(self.spans)

    def fingerprint(self) -> str:
        """Hash of the names and sizes of the files and of where in them the samples are; of the pictures themselves it says nothing."""
        digest = hashlib.sha256(self.spans.tobytes())
        for file, state in zip(self.files, self.states, strict=True):
            digest.update(f"{file.name} {state.size if state else None}\n".encode())
        return digest.hexdigest()

    def read(self, index: int, what: str) -> bytes:
        """The bytes of a sample's picture or caption."""
        span = self.spans[index]
        with self.files[span[f"{what}_file"]].open("rb") as file:
            file.seek(span[f"{what}_start"])
            return file.read(span[f"{what}_size"])

    def check(self, index: int) -> None:
        """Raises a data problem where a file of the sample is gone or was written since."""
        for what in ("picture", "caption"):
            number = self.spans[index][f"{what}_file"]
            file = self.files[number]
            now = state_of(file)
            if now != self.states[number]:
                changed = "is gone" if now is None else "changed"
                raise fail(
                    "data", f"'{file}' {changed} while the run reads it", path=("path",), help=HELP
                )

    def place(self, index: int) -> str:
        """A sample in words."""
        span = self.spans[index]
        file = self.files[span["picture_file"]]
        return (
            f"'{file}'"
            if not span["picture_start"]
            else f"the picture at byte {span['picture_start']} of '{file}'"
        )


def folder_samples(path: str, *, least: int) -> Samples:
    """The pictures that a folder or a glob names, each with the text file of its name beside it."""
    pictures = find_files(path, PICTURES)
    files: list[Path] = []
    found: list[tuple[Span, Span]] = []
    alone = 0
    for picture in pictures:
        caption = picture.with_suffix(CAPTION)
        if not caption.is_file():
            alone += 1
            continue
        files += [picture, caption]
        found.append(
            (
                (len(files) - 2, 0, picture.stat().st_size),
                (len(files) - 1, 0, caption.stat().st_size),
            )
        )
    return large_enough(path, files, found, alone, least=least)


def tar_samples(path: str, *, least: int) -> Samples:
    """The members of tar files of which one is a picture and one a text, with the same name up to its first dot."""
    files = find_files(path, TAR_FILES)
    found: list[tuple[Span, Span]] = []
    alone = 0
    for number, file in enumerate(files):
        pairs, single = members(file)
        found += [((number, *picture), (number, *caption)) for picture, caption in pairs]
        alone += single
        sign_of_life()
    return large_enough(path, files, found, alone, least=least)


def members(file: Path) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], int]:
    """First byte and size of each picture of a tar file and of its caption, in the file's order; and how many pictures have none.

    Raises a data problem where it is no tar file, or a compressed one.
    """
    pictures: dict[str, tuple[int, int]] = {}
    captions: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                place = (member.offset_data, member.size)
                if member.isfile() and f".{ending.lower()}" in PICTURES:
                    pictures[f"{folder}/{stem}"] = place
                elif member.isfile() and f".{ending.lower()}" == CAPTION:
                    captions[f"{folder}/{stem}"] = place
    except (tarfile.TarError, OSError) as error:
        raise no_tar_file(file, error) from None
    return [(place, captions[key]) for key, place in pictures.items() if key in captions], len(
        pictures.keys() - captions.keys()
    )


def large_enough(
    path: str, files: Sequence[Path], found: Sequence[tuple[Span, Span]], alone: int, *, least: int
) -> Samples:
    """The samples whose pictures can be read and have `least` pixels on each side; says how many are left out.

    Raises a data problem where none is left.
    """
    kept, small, broken = [], 0, 0
    for number, (picture, caption) in enumerate(found):
        if number % SIGN_EVERY == 0:
            sign_of_life()
        size = size_of(files[picture[0]], picture)
        if size is None:
            broken += 1
        elif min(size) < least:
            small += 1
        else:
            kept.append((*picture, *caption))
    reasons = {"without a caption": alone, "smaller than image_size": small, "not readable": broken}
    left_out = ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count)
    if not kept:
        message = f"'{path}' has no picture with a caption to train on: {left_out or 'it is empty'}"
        raise fail(
            "data",
            message,
            path=("path",),
            help="each needs a caption, and image_size pixels on both sides",
        )
    if left_out:
        log.warning(
            "'%s': left out of %s: %s", path, counted(len(found) + alone, "picture"), left_out
        )
    return Samples(files, [state_of(file) for file in files], np.array(kept, dtype=SPANS))


def size_of(file: Path, span: Span) -> tuple[int, int] | None:
    """Width and height of a picture, from its first bytes; None where they are no picture's."""
    for length in (min(HEAD, span[2]), span[2]):
        with file.open("rb") as opened:
            opened.seek(span[1])
            head = io.BytesIO(opened.read(length))
        try:
            with Image.open(head) as picture:
                return picture.size
        except (OSError, SyntaxError, ValueError):
            # what a camera writes in front of the picture may be longer
            continue
    return None
