"""Images generated for prompts, as PNG files."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from titanrun.components.data.config import ImagesConfig
from titanrun.config.problems import problem_error
from titanrun.distributed.device import select_device
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe

DEFAULT_SAMPLING_STEPS = 50
DEFAULT_SIZE = 256


def get_image_size(recipe: Recipe, requested_size: int | None) -> int:
    """Return the side length in pixels: the requested one, or that of the training images.

    Raises:
        ProblemsFound: the model cannot generate images of this size.
    """
    dataset = recipe.training.dataset
    size = requested_size or (
        dataset.image_size if isinstance(dataset, ImagesConfig) else DEFAULT_SIZE
    )
    pixels, longest = recipe.model.pixels_per_token(), unwrap_auto(recipe.model.max_seq_len)
    if size % pixels:
        raise problem_error(
            "usage",
            f"image size {size} is not divisible by the token size of {pixels} pixels",
            hint=f"use a multiple of {pixels}",
        )
    if recipe.model.image_seq_len(size) > longest:
        message = (
            f"an image of {size} pixels and its text are {recipe.model.image_seq_len(size)} "
            f"tokens, but the model supports at most {longest}"
        )
        raise problem_error("usage", message, hint="use a smaller --size")
    return size


def generate_images(recipe: Recipe, model: nn.Module, job: Mapping[str, Any], *, size: int) -> None:
    """Generate an image for each prompt, write the files, and print their names."""
    image_module = import_pillow()
    sampling = load_family_module(type(recipe.model), "image_sampling")
    options = sampling.ImageSampling(
        steps=job["steps"] or DEFAULT_SAMPLING_STEPS,
        size=size,
        seed=job["seed"],
        guidance=job["guidance"],
    )
    images: Tensor = sampling.sample_images(
        model, recipe.model, job["prompt"], options, device=select_device(recipe.device)
    )
    for image, path in zip(
        images, build_image_paths(job["output"], len(job["prompt"])), strict=True
    ):
        write_image(image_module, image, path)
        print(path)


def write_image(image_module: Any, image_CHW: Tensor, path: Path) -> None:
    """Write an image [3, height, width] of uint8 as a PNG file.

    Args:
        image_module: the module returned by `import_pillow`.
        image_CHW: the image.
        path: the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    image_module.fromarray(image_CHW.permute(1, 2, 0).cpu().numpy()).save(path, format="PNG")


def build_image_paths(output: str, count: int) -> list[Path]:
    """Return a path for each image: the output itself, or numbered paths for several images."""
    named = Path(output)
    return (
        [named]
        if count == 1
        else [named.with_stem(f"{named.stem}-{number}") for number in range(1, count + 1)]
    )


def import_pillow() -> Any:
    """Import the module that writes PNG files.

    Raises:
        ProblemsFound: it is not installed.
    """
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise problem_error(
            "usage",
            "PNG files need the package 'pillow', which is not installed",
            hint='pip install "titanrun[flux]"',
        ) from None
