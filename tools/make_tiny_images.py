"""Makes the pictures of coloured shapes that ship with titanrun, with their captions.

Each picture is one combination of shape, colour and place; the held-out part has combinations that
the training part lacks.
`make_tiny_images.py` writes them, `--check` compares the committed files with a fresh make, pixel
by pixel: what zlib makes of the same
pixels depends on its version.
"""

import argparse
import io
import struct
import sys
import tarfile
import zlib
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ASSETS = Path(__file__).resolve().parents[1] / "titanrun" / "assets" / "tiny_images"
SIDE, RADIUS = 256, 56
BACKGROUND = (24, 24, 32)
COLOURS = {
    "red": (224, 48, 48),
    "green": (48, 192, 80),
    "blue": (64, 96, 240),
    "yellow": (240, 208, 64),
}
# rows and columns of the middle
PLACES = {
    "left": (128, 64),
    "right": (128, 192),
    "top": (64, 128),
    "bottom": (192, 128),
    "middle": (128, 128),
}
SHAPES = ("circle", "square", "triangle")
HELD_OUT_EVERY = 5


def mask(shape: str, place: str) -> NDArray[np.bool_]:
    """Which pixels the shape covers."""
    row, column = PLACES[place]
    rows, columns = np.mgrid[:SIDE, :SIDE]
    down, right = rows - row, columns - column
    if shape == "circle":
        return down**2 + right**2 <= RADIUS**2
    if shape == "square":
        return (abs(down) <= RADIUS) & (abs(right) <= RADIUS)
    return (abs(down) <= RADIUS) & (2 * abs(right) <= down + RADIUS)


def png(covered: NDArray[np.bool_], colour: tuple[int, int, int]) -> bytes:
    """Draw a picture of two colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = np.packbits(covered, axis=1)
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 1, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", bytes(BACKGROUND + colour)),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def make() -> dict[str, dict[str, bytes]]:
    """Return the members of each tar file."""
    made: dict[str, dict[str, bytes]] = {"train.tar": {}, "held_out.tar": {}}
    for number, (shape, colour, place) in enumerate(product(SHAPES, COLOURS, PLACES)):
        members = made[
            "held_out.tar"
            if number % HELD_OUT_EVERY == number // HELD_OUT_EVERY % HELD_OUT_EVERY
            else "train.tar"
        ]
        members[f"{number:03}.png"] = png(mask(shape, place), COLOURS[colour])
        members[f"{number:03}.txt"] = f"a {colour} {shape} {place}\n".encode()
    return made


def write(folder: Path) -> None:
    """Write the tar files, without times and owners."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, members in make().items():
        with tarfile.open(folder / name, "w", format=tarfile.USTAR_FORMAT) as archive:
            for member, content in members.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def differences(folder: Path) -> list[str]:
    """One line for each committed member that differs from a fresh make."""
    found = []
    for name, members in make().items():
        with tarfile.open(folder / name) as archive:
            committed = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        for member in sorted(members.keys() | committed.keys()):
            given = [content.get(member) for content in (members, committed)]
            if None in given or pixels(given[0]) != pixels(given[1]):
                found.append(f"{name}: {member} differs")
    return found


def pixels(content: bytes | None) -> bytes | None:
    """Return what a picture shows; a text as it is."""
    if content is None or not content.startswith(b"\x89PNG"):
        return content
    with Image.open(io.BytesIO(content)) as picture:
        return picture.convert("RGB").tobytes()


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    if not parser.parse_args().check:
        write(ASSETS)
        return 0
    found = differences(ASSETS)
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
