"""Rows of pictures with captions: each picture resized and cut to a square, each time in another place.

Shapes: S pixels of a side.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from titanrun.components.data.config import FolderImagesConfig, TinyImagesConfig, WebDatasetConfig
from titanrun.components.data.image_files import Samples, folder_samples, tar_samples
from titanrun.components.data.rows import DrawnRow, Number
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import fail

SHIPPED = Path(__file__).parents[2] / "assets" / "tiny_images"
# bytes of a caption in a row; T5 reads 512 tokens at most
LONGEST_CAPTION = 4096
# of rows that are not drawn: each has a key of its own, and always the same one
FIXED = 2**62


class ImageRows:
    """Indexed samples, each an array of one element: `number`, `key` (what its draws begin from), `pixels` [3, S, S], `caption`.

    `max_token_id` says that there are no token ids.
    """

    max_token_id = -1
    are_drawn = True

    def __init__(self, samples: Samples, *, image_size: int) -> None:
        self.samples, self.image_size = samples, image_size
        self.fingerprint = hashlib.sha256(
            f"{samples.fingerprint()} {image_size}".encode()
        ).hexdigest()
        self.dtype = np.dtype(
            [
                ("number", "<i8"),
                ("key", "<i8"),
                ("pixels", "u1", (3, image_size, image_size)),
                ("caption", f"S{LONGEST_CAPTION}"),
            ]
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: Number) -> NDArray[Any]:
        """A sample, with its key for what is drawn of it: where it is cut here, and what the model draws later. A plain number is the
        sample as it is whenever it is measured.

        Raises a data problem where a file of it was written since the data was opened, or the picture is damaged.
        """
        index, key = number if isinstance(number, DrawnRow) else (number, FIXED + number)
        row = np.zeros((), dtype=self.dtype)
        row["number"], row["key"] = index, key
        row["pixels"] = square(self._picture(index), self.image_size, key).transpose(2, 0, 1)
        row["caption"] = cut(self.samples.read(index, "caption").strip())
        self.samples.check(index)
        return row

    def check(self) -> None:
        """Each sample looks after its own files."""

    def _picture(self, index: int) -> Image.Image:
        """The picture in three colours. Raises a data problem where it is damaged."""
        try:
            with Image.open(io.BytesIO(self.samples.read(index, "picture"))) as picture:
                return picture.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            self.samples.check(index)
            message = f"{self.samples.place(index)} is damaged: {error}"
            raise fail("data", message, path=("path",), help="take it out of the data") from None


def square(picture: Image.Image, size: int, key: int) -> NDArray[np.uint8]:
    """The picture with its shorter side `size` pixels long, and of the longer one a part that `key` chooses: [S, S, 3]."""
    width, height = picture.size
    shorter = min(width, height)
    resized = picture.resize(
        (-(-width * size // shorter), -(-height * size // shorter)), Image.Resampling.BILINEAR
    )
    left, top = (
        (side - size + 1) * int(draw) >> 32
        for side, draw in zip(resized.size, draws(key), strict=True)
    )
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def draws(key: int) -> NDArray[np.uint64]:
    """Two numbers below 2^32 that follow from the key."""
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(2) >> np.uint64(32)


def cut(caption: bytes) -> bytes:
    """At most LONGEST_CAPTION bytes of valid UTF-8, without a character cut in two."""
    return caption[:LONGEST_CAPTION].decode("utf-8", errors="ignore").replace("\0", " ").encode()


def folder_rows(
    config: FolderImagesConfig, *, tokenizer: Tokenizer | None, row_length: int, cache_folder: Path
) -> ImageRows:
    """Pictures in a folder, each with a text file of its name beside it."""
    return ImageRows(
        folder_samples(config.path, least=config.image_size), image_size=config.image_size
    )


def webdataset_rows(
    config: WebDatasetConfig, *, tokenizer: Tokenizer | None, row_length: int, cache_folder: Path
) -> ImageRows:
    """Pictures in tar files, each with a text of its name."""
    return ImageRows(
        tar_samples(config.path, least=config.image_size), image_size=config.image_size
    )


def tiny_rows(
    config: TinyImagesConfig, *, tokenizer: Tokenizer | None, row_length: int, cache_folder: Path
) -> ImageRows:
    """One part of the pictures that ship with titanrun."""
    return ImageRows(
        tar_samples(str(SHIPPED / f"{config.split}.tar"), least=config.image_size),
        image_size=config.image_size,
    )
