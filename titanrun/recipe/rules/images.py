"""Rules about models of pictures: data, loss and rows that fit them, and encoders that are there."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from titanrun.components.data.config import FolderImagesConfig, ImagesConfig, WebDatasetConfig
from titanrun.components.data.source_files import (
    CAPTION,
    PICTURES,
    TAR_FILES,
    find_files,
    no_tar_file,
)
from titanrun.config.counted import counted
from titanrun.config.problems import DataPath, ProblemsFound, fail
from titanrun.distributed.degrees import pieces_per_rank
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.book import Finding, rule
from titanrun.recipe.rules.context_parallel import BALANCER, CONTEXT, next_multiple
from titanrun.recipe.rules.data import datasets, exists, sources

TEXT_LENGTH: DataPath = ("model", "encoder", "max_t5_encoding_len")
ENCODERS = ("t5_encoder", "clip_encoder", "autoencoder_path")
OF_CONTENT = {
    "images": ("images, webdataset or tiny_images", "flow_matching"),
    "tokens": ("text or tokens", "cross_entropy"),
}


@rule("data-and-loss-fit-model")
def data_and_loss_fit_model(run: Recipe) -> Iterator[Finding]:
    """A model trains either on tokens or on pictures: its datasets must give them, and its loss be about them. Take a dataset and a loss
    of the model's kind."""
    takes = run.model.takes
    fitting_data, fitting_loss = OF_CONTENT.get(takes, (f"one of {takes}", f"one about {takes}"))
    for section, dataset in datasets(run):
        if dataset.gives != takes:
            message = f"{run.model.name} trains on {takes}, and dataset '{dataset.name}' gives {dataset.gives}"
            yield Finding(
                message,
                ((section, "dataset"), ("model", "name")),
                help=f"take the dataset {fitting_data}",
            )
    if run.loss.concerns != takes:
        message = f"{run.model.name} trains on {takes}, and loss '{run.loss.name}' is about {run.loss.concerns}"
        yield Finding(message, (("loss",), ("model", "name")), help=f"set loss: {fitting_loss}")


@rule("images-need-no-tokenizer")
def images_need_no_tokenizer(run: Recipe) -> Iterator[Finding]:
    """The captions of pictures are read by the tokenizers of the text encoders, so that a tokenizer in the recipe has no effect."""
    if run.model.takes == "images" == run.training.dataset.gives and run.tokenizer is not None:
        message = f"{run.model.name} has the tokenizers of its text encoders, and none of its own"
        yield Finding(
            message, (("tokenizer",), ("model", "name")), help="remove it", code="no-effect"
        )


@rule("rows-hold-images")
def rows_hold_images(run: Recipe) -> Iterator[Finding]:
    """A row of a model of pictures is a picture and its caption: training.seq_len and validation.seq_len are the tokens of both, and
    pictures must be cut evenly into tokens. Set them to what the message says."""
    if run.model.takes != "images":
        return
    for section, dataset in datasets(run):
        if not isinstance(dataset, ImagesConfig):
            continue
        size, pixels = dataset.image_size, run.model.pixels_of_token()
        place: DataPath = (section, "dataset", "image_size")
        if size % pixels:
            message = f"pictures of {size} pixels cannot be cut into tokens of {pixels}"
            yield Finding(
                message, (place, (section, "dataset")), help=f"use a multiple of {pixels}"
            )
            continue
        wanted, written = run.model.row_length(size), int(getattr(run, section).seq_len)
        follows = (
            section == "validation"
            and written == run.training.seq_len
            and size == getattr(run.training.dataset, "image_size", None)
        )
        if wanted != written and not follows:
            text = wanted - (size // pixels) ** 2
            message = f"a picture of {size} pixels and {text} tokens of text are {wanted} tokens, and {section}.seq_len is {written}"
            yield Finding(
                message, ((section, "seq_len"), place), help=f"set {section}.seq_len: {wanted}"
            )


@rule("images-divide-over-cp")
def images_divide_over_cp(run: Recipe) -> Iterator[Finding]:
    """Context-parallel ranks share the text and the picture of each row: the tokens of either must be a multiple of
    context_parallel_degree, and of twice that with the load balancer headtail."""
    degree, pieces = run.parallelism.context_parallel_degree, pieces_per_rank(run.parallelism)
    if run.model.takes != "images" or degree == 1:
        return
    unit = degree * pieces
    each = ", two pieces each" if pieces > 1 else ""
    ranks = f"{degree} context-parallel ranks{each}"
    text = run.model.row_length(0)
    if text % unit:
        message = f"{text} tokens of text cannot be split over {ranks}"
        yield Finding(
            message,
            (TEXT_LENGTH, CONTEXT, BALANCER),
            help=f"use a multiple of {unit}, such as {next_multiple(text, unit)}",
        )
    for section, dataset in datasets(run):
        if not isinstance(dataset, ImagesConfig):
            continue
        size, pixels = dataset.image_size, run.model.pixels_of_token()
        tokens = (size // pixels) ** 2
        if size % pixels == 0 and tokens % unit:
            place: DataPath = (section, "dataset", "image_size")
            message = f"a picture of {size} pixels, {tokens} tokens, cannot be split over {ranks}"
            yield Finding(
                message,
                (place, CONTEXT, BALANCER),
                help="use pictures of another size, or fewer ranks",
            )


@rule("encoders-exist", level="environment")
def encoders_exist(run: Recipe) -> Iterator[Finding]:
    """The encoders of a model of pictures must be there before the run starts: folders with a config.json, and a file for the
    autoencoder. `tiny` stands for one that needs no files."""
    encoder = getattr(run.model, "encoder", None)
    if run.model.takes != "images" or encoder is None:
        return
    for name in ENCODERS:
        written = str(getattr(encoder, name))
        path = Path(written)
        is_there = (
            path.is_file() if name == "autoencoder_path" else (path / "config.json").is_file()
        )
        if written != "tiny" and not is_there:
            what = (
                f"there is no file '{written}'"
                if name == "autoencoder_path"
                else f"there is no encoder in '{written}'"
            )
            yield Finding(
                what,
                (("model", "encoder", name),),
                help=f"paths are relative to {Path.cwd()}; tiny needs none",
                code="file",
            )


@rule("pictures-are-there", level="environment")
def pictures_are_there(run: Recipe) -> Iterator[Finding]:
    """A folder of pictures must have one with a caption: a .txt file of its name beside it. Of tar files the first must be one, and not
    compressed."""
    for place, dataset in sources(run):
        if not isinstance(dataset, FolderImagesConfig | WebDatasetConfig) or not exists(
            dataset.path
        ):
            continue  # of what is not there, paths-exist speaks
        try:
            look_into(dataset)
        except ProblemsFound as found:
            for problem in found.problems:
                yield Finding(
                    problem.message, ((*place, "path"), place), help=problem.help, code="data"
                )


def look_into(dataset: FolderImagesConfig | WebDatasetConfig) -> None:
    """Raises a data problem where the files of a dataset hold no pictures."""
    if isinstance(dataset, FolderImagesConfig):
        pictures = find_files(dataset.path, PICTURES)
        if not any(picture.with_suffix(CAPTION).is_file() for picture in pictures):
            message = (
                f"'{dataset.path}' has {counted(len(pictures), 'picture')}, and none with a caption"
            )
            help = f"write that of '{pictures[0].name}' into '{pictures[0].with_suffix(CAPTION).name}' beside it"
            raise fail("data", message, path=("path",), help=help)
        return
    file = find_files(dataset.path, TAR_FILES)[0]
    try:
        with tarfile.open(file, "r:") as archive:
            archive.next()
    except (tarfile.TarError, OSError) as error:
        raise no_tar_file(file, error) from None
