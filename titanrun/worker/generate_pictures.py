"""Pictures that a model of pictures draws for prompts, as PNG files."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from titanrun.components.data.config import ImagesConfig
from titanrun.config.problems import fail
from titanrun.distributed.device import find_device
from titanrun.models.shared.config import decided
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe

STEPS = 50
DEFAULT_SIZE = 256


def size_of(recipe: Recipe, asked: int | None) -> int:
    """Pixels of a side: those asked for, or those that the model was trained on. Raises ProblemsFound where the model has no such
    pictures."""
    dataset = recipe.training.dataset
    size = asked or (dataset.image_size if isinstance(dataset, ImagesConfig) else DEFAULT_SIZE)
    pixels, longest = recipe.model.pixels_of_token(), decided(recipe.model.max_seq_len)
    if size % pixels:
        raise fail(
            "usage",
            f"a picture of {size} pixels cannot be made of tokens of {pixels}",
            help=f"use a multiple of {pixels}",
        )
    if recipe.model.row_length(size) > longest:
        message = f"a picture of {size} pixels and its text are {recipe.model.row_length(size)} tokens, and the model takes {longest}"
        raise fail("usage", message, help="ask for a smaller --size")
    return size


def draw(recipe: Recipe, model: nn.Module, job: Mapping[str, Any], *, size: int) -> None:
    """Draws a picture for each prompt, writes them, and prints the names of the files."""
    image = pillow()
    sampling = family_module(type(recipe.model), "sampling")
    how = sampling.PictureSampling(
        steps=job["steps"] or STEPS, size=size, seed=job["seed"], guidance=job["guidance"]
    )
    drawn: Tensor = sampling.pictures(
        model, recipe.model, job["prompt"], how, device=find_device(recipe.device)
    )
    for picture, path in zip(drawn, paths(job["output"], len(job["prompt"])), strict=True):
        write_picture(image, picture, path)
        print(path)


def write_picture(image: Any, picture: Tensor, path: Path) -> None:
    """A picture [3, height, width] as a PNG file; `image` is what `pillow` gives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(path, format="PNG")


def paths(output: str, count: int) -> list[Path]:
    """A file for each picture: the one named, or, where they are several, that name with a number."""
    named = Path(output)
    return (
        [named]
        if count == 1
        else [named.with_stem(f"{named.stem}-{number}") for number in range(1, count + 1)]
    )


def pillow() -> Any:
    """The package that writes PNG files. Raises ProblemsFound where it is missing."""
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise fail(
            "usage",
            "PNG files need the package 'pillow', which is not installed",
            help='pip install "titanrun[flux]"',
        ) from None
