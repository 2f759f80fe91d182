"""Images with captions, each resized and cropped to a square at a random position.

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
from titanrun.components.data.image_sources import (
    ImageSamples,
    load_folder_samples,
    load_tar_samples,
)
from titanrun.components.data.indexed_dataset import SampleIndex, SampleRequest
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import problem_error

TINY_IMAGES = Path(__file__).parents[2] / "assets" / "tiny_images"
# bytes of a caption in a sample; T5 reads 512 tokens at most
MAX_CAPTION_BYTES = 4096
# offset of the keys of samples without random draws: each has its own key, always the same
FIXED_KEY_OFFSET = 2**62


class ImageDataset:
    """Indexed samples, each an array of one element.

    Fields: `number`, `key` (the seed of its random draws), `pixels` [3, S, S], `caption`.
    `max_token_id` is -1: there are no token ids.
    """

    max_token_id = -1
    needs_sample_keys = True

    def __init__(self, samples: ImageSamples, *, image_size: int) -> None:
        self.samples, self.image_size = samples, image_size
        self.fingerprint = hashlib.sha256(
            f"{samples.compute_fingerprint()} {image_size}".encode()
        ).hexdigest()
        self.dtype = np.dtype(
            [
                ("number", "<i8"),
                ("key", "<i8"),
                ("pixels", "u1", (3, image_size, image_size)),
                ("caption", f"S{MAX_CAPTION_BYTES}"),
            ]
        )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: SampleIndex) -> NDArray[Any]:
        """Return a sample with its key, the seed of the crop and of later draws of the model.

        A plain index selects the fixed key of the sample, for measurements.

        Raises:
            ProblemsFound: A data problem if a file changed since the data was opened, or the image
                is damaged.
        """
        index, key = (
            number if isinstance(number, SampleRequest) else (number, FIXED_KEY_OFFSET + number)
        )
        row = np.zeros((), dtype=self.dtype)
        row["number"], row["key"] = index, key
        row["pixels"] = crop_square(self._load_image(index), self.image_size, key).transpose(
            2, 0, 1
        )
        row["caption"] = truncate_caption(self.samples.read(index, "caption").strip())
        self.samples.check(index)
        return row

    def check(self) -> None:
        """Do nothing: each sample checks its own files."""

    def _load_image(self, index: int) -> Image.Image:
        """Return the image in RGB. Raise a data problem if it is damaged."""
        try:
            with Image.open(io.BytesIO(self.samples.read(index, "picture"))) as image:
                return image.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            self.samples.check(index)
            message = f"{self.samples.format_location(index)} is damaged: {error}"
            raise problem_error(
                "data", message, path=("path",), hint="remove it from the data"
            ) from None


def crop_square(image: Image.Image, size: int, key: int) -> NDArray[np.uint8]:
    """Resize the shorter side to `size` pixels and crop the longer one as drawn from `key`.

    Returns [S, S, 3].
    """
    width, height = image.size
    shorter = min(width, height)
    resized = image.resize(
        (-(-width * size // shorter), -(-height * size // shorter)), Image.Resampling.BILINEAR
    )
    left, top = (
        (side - size + 1) * int(draw) >> 32
        for side, draw in zip(resized.size, draw_crop_offsets(key), strict=True)
    )
    return np.asarray(resized.crop((left, top, left + size, top + size)))


def draw_crop_offsets(key: int) -> NDArray[np.uint64]:
    """Return two numbers below 2^32, drawn from the key."""
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(2) >> np.uint64(32)


def truncate_caption(caption: bytes) -> bytes:
    """Truncate to MAX_CAPTION_BYTES bytes of valid UTF-8, without splitting a character."""
    return caption[:MAX_CAPTION_BYTES].decode("utf-8", errors="ignore").replace("\0", " ").encode()


def build_image_folder_dataset(
    config: FolderImagesConfig,
    *,
    tokenizer: Tokenizer | None,
    sample_length: int,
    cache_folder: Path,
) -> ImageDataset:
    """Build the dataset of the images in a folder, each with a text file of the same name."""
    return ImageDataset(
        load_folder_samples(config.path, min_size=config.image_size), image_size=config.image_size
    )


def build_webdataset(
    config: WebDatasetConfig, *, tokenizer: Tokenizer | None, sample_length: int, cache_folder: Path
) -> ImageDataset:
    """Build the dataset of the images in tar files, each with a text of the same name."""
    return ImageDataset(
        load_tar_samples(config.path, min_size=config.image_size), image_size=config.image_size
    )


def build_tiny_image_dataset(
    config: TinyImagesConfig, *, tokenizer: Tokenizer | None, sample_length: int, cache_folder: Path
) -> ImageDataset:
    """Build the dataset of one part of the images that ship with titanrun."""
    return ImageDataset(
        load_tar_samples(str(TINY_IMAGES / f"{config.split}.tar"), min_size=config.image_size),
        image_size=config.image_size,
    )
