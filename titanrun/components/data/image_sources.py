"""Locations of images and captions: files in a folder, or members of tar files."""

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

from titanrun.components.data.file_change_guard import RESTORE_DATA_HINT, FileState, find_file_state
from titanrun.components.data.spec.data_files import (
    CAPTION_SUFFIX,
    IMAGE_SUFFIXES,
    TAR_SUFFIXES,
    resolve_data_files,
    unreadable_tar_error,
)
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.distributed.heartbeat import send_heartbeat

log = logging.getLogger(__name__)

# location of the bytes of a sample's image and caption: index of the file, first byte, size
SAMPLE_SPAN_DTYPE = np.dtype(
    [
        (f"{what}_{part}", "<i8")
        for what in ("picture", "caption")
        for part in ("file", "start", "size")
    ]
)
Span = tuple[int, int, int]
HEARTBEAT_EVERY = 1000
# bytes that nearly always include the size of an image
IMAGE_HEADER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class ImageSamples:
    """Images with captions, by index.

    Args:
        files: Files that hold them.
        states: States of the files when they were scanned.
        spans: Location of each sample, of dtype SAMPLE_SPAN_DTYPE.
    """

    files: Sequence[Path]
    states: Sequence[FileState | None]
    spans: NDArray[Any]

    def __len__(self) -> int:
        return len(self.spans)

    def compute_fingerprint(self) -> str:
        """Return a hash of the names and sizes of the files and the locations of the samples.

        It does not cover the content of the images.
        """
        digest = hashlib.sha256(self.spans.tobytes())
        for file, state in zip(self.files, self.states, strict=True):
            digest.update(f"{file.name} {state.size if state else None}\n".encode())
        return digest.hexdigest()

    def read(self, index: int, kind: str) -> bytes:
        """Return the bytes of a sample's image or caption; `kind` is "picture" or "caption"."""
        span = self.spans[index]
        with self.files[span[f"{kind}_file"]].open("rb") as file:
            file.seek(span[f"{kind}_start"])
            content: bytes = file.read(span[f"{kind}_size"])
        return content

    def check(self, index: int) -> None:
        """Raise a data problem if a file of the sample is gone or has changed."""
        for what in ("picture", "caption"):
            number = self.spans[index][f"{what}_file"]
            file = self.files[number]
            now = find_file_state(file)
            if now != self.states[number]:
                changed = "is gone" if now is None else "changed"
                raise problem_error(
                    "data",
                    f"'{file}' {changed} while the run reads it",
                    path=("path",),
                    hint=RESTORE_DATA_HINT,
                )

    def format_location(self, index: int) -> str:
        """Return the location of a sample for messages."""
        span = self.spans[index]
        file = self.files[span["picture_file"]]
        return (
            f"'{file}'"
            if not span["picture_start"]
            else f"the image at byte {span['picture_start']} of '{file}'"
        )


def load_folder_samples(path: str, *, min_size: int) -> ImageSamples:
    """Load the images of a folder or a glob, each with a text file of the same name."""
    pictures = resolve_data_files(path, IMAGE_SUFFIXES)
    files: list[Path] = []
    found: list[tuple[Span, Span]] = []
    alone = 0
    for picture in pictures:
        caption = picture.with_suffix(CAPTION_SUFFIX)
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
    return select_large_images(path, files, found, alone, min_size=min_size)


def load_tar_samples(path: str, *, min_size: int) -> ImageSamples:
    """Load the pairs of image and text in tar files with the same name up to the first dot."""
    files = resolve_data_files(path, TAR_SUFFIXES)
    found: list[tuple[Span, Span]] = []
    alone = 0
    for number, file in enumerate(files):
        pairs, single = read_tar_members(file)
        found += [((number, *picture), (number, *caption)) for picture, caption in pairs]
        alone += single
        send_heartbeat()
    return select_large_images(path, files, found, alone, min_size=min_size)


def read_tar_members(file: Path) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], int]:
    """Return (first byte, size) of each image and its caption, and the number of other images.

    The images are in the order of the file.

    Raises:
        ProblemsFound: A data problem if the file is not a tar file, or compressed.
    """
    pictures: dict[str, tuple[int, int]] = {}
    captions: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                place = (member.offset_data, member.size)
                if member.isfile() and f".{ending.lower()}" in IMAGE_SUFFIXES:
                    pictures[f"{folder}/{stem}"] = place
                elif member.isfile() and f".{ending.lower()}" == CAPTION_SUFFIX:
                    captions[f"{folder}/{stem}"] = place
    except (tarfile.TarError, OSError) as error:
        raise unreadable_tar_error(file, error) from None
    return [(place, captions[key]) for key, place in pictures.items() if key in captions], len(
        pictures.keys() - captions.keys()
    )


def select_large_images(
    path: str,
    files: Sequence[Path],
    spans: Sequence[tuple[Span, Span]],
    num_without_caption: int,
    *,
    min_size: int,
) -> ImageSamples:
    """Select the readable images with at least `min_size` pixels per side; log the rest.

    Raises:
        ProblemsFound: A data problem if no image is left.
    """
    kept, small, broken = [], 0, 0
    for number, (picture, caption) in enumerate(spans):
        if number % HEARTBEAT_EVERY == 0:
            send_heartbeat()
        size = find_image_size(files[picture[0]], picture)
        if size is None:
            broken += 1
        elif min(size) < min_size:
            small += 1
        else:
            kept.append((*picture, *caption))
    reasons = {
        "without a caption": num_without_caption,
        "smaller than image_size": small,
        "not readable": broken,
    }
    left_out = ", ".join(f"{count:,} {why}" for why, count in reasons.items() if count)
    if not kept:
        message = f"'{path}' has no image with a caption to train on: {left_out or 'it is empty'}"
        raise problem_error(
            "data",
            message,
            path=("path",),
            hint="each image needs a caption, and image_size pixels on both sides",
        )
    if left_out:
        log.warning(
            "'%s': skipped of %s: %s",
            path,
            pluralize(len(spans) + num_without_caption, "image"),
            left_out,
        )
    return ImageSamples(
        files, [find_file_state(file) for file in files], np.array(kept, dtype=SAMPLE_SPAN_DTYPE)
    )


def find_image_size(file: Path, span: Span) -> tuple[int, int] | None:
    """Return width and height of an image from its first bytes, None if it is not an image."""
    for length in (min(IMAGE_HEADER_BYTES, span[2]), span[2]):
        with file.open("rb") as opened:
            opened.seek(span[1])
            head = io.BytesIO(opened.read(length))
        try:
            with Image.open(head) as picture:
                return picture.size
        except (OSError, SyntaxError, ValueError):
            # a camera's metadata before the image may be longer
            continue
    return None
