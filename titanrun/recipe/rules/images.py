"""Rules about image models: data, loss, sequence lengths and encoders."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from titanrun.components.data.config import FolderImagesConfig, ImagesConfig, WebDatasetConfig
from titanrun.components.data.spec.data_files import (
    CAPTION_SUFFIX,
    IMAGE_SUFFIXES,
    TAR_SUFFIXES,
    resolve_data_files,
    unreadable_tar_error,
)
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound, problem_error
from titanrun.distributed.spec.parallel_dims import get_cp_chunks_per_rank
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.context_parallel import BALANCER, CONTEXT, round_up_to_multiple
from titanrun.recipe.rules.data import get_all_datasets, get_section_datasets, matches_existing_path
from titanrun.recipe.rules.registry import RuleViolation, rule

TEXT_LENGTH: DataPath = ("model", "encoder", "max_t5_encoding_len")
ENCODERS = ("t5_encoder", "clip_encoder", "autoencoder_path")
NEEDS_BY_MODALITY = {
    "images": ("images, webdataset or tiny_images", "flow_matching"),
    "tokens": ("text or tokens", "cross_entropy"),
}


@rule("data-and-loss-fit-model")
def data_and_loss_fit_model(run: Recipe) -> Iterator[RuleViolation]:
    """Require datasets and loss to match the modality of the model.

    A model trains either on tokens or on images. Use datasets and a loss of the model's modality.
    """
    modality = run.model.modality
    fitting_data, fitting_loss = NEEDS_BY_MODALITY.get(
        modality, (f"one of {modality}", f"one for {modality}")
    )
    for section, dataset in get_section_datasets(run):
        if dataset.modality != modality:
            message = (
                f"model '{run.model.name}' trains on {modality}, but dataset "
                f"'{dataset.name}' has {dataset.modality}"
            )
            yield RuleViolation(
                message,
                ((section, "dataset"), ("model", "name")),
                hint=f"use the dataset {fitting_data}",
            )
    if run.loss.modality != modality:
        message = (
            f"model '{run.model.name}' trains on {modality}, but loss '{run.loss.name}' is "
            f"for {run.loss.modality}"
        )
        yield RuleViolation(
            message, (("loss",), ("model", "name")), hint=f"set loss: {fitting_loss}"
        )


@rule("images-need-no-tokenizer")
def images_need_no_tokenizer(run: Recipe) -> Iterator[RuleViolation]:
    """Reject a tokenizer for image models.

    The tokenizers of the text encoders read the captions of images, so that a tokenizer in the
    recipe has no effect. Remove it.
    """
    if (
        run.model.modality == "images" == run.training.dataset.modality
        and run.tokenizer is not None
    ):
        message = (
            f"tokenizer has no effect: model '{run.model.name}' uses the tokenizers of its "
            "text encoders"
        )
        yield RuleViolation(
            message, (("tokenizer",), ("model", "name")), hint="remove it", code="no-effect"
        )


@rule("rows-hold-images")
def sequences_hold_images(run: Recipe) -> Iterator[RuleViolation]:
    """Require seq_len to equal the tokens of one image and its caption.

    A sequence of an image model is an image and its caption: training.seq_len and
    validation.seq_len are the tokens of both, and image_size must be a multiple of the pixels per
    token. Set them to the values in the message.
    """
    if run.model.modality != "images":
        return
    for section, dataset in get_section_datasets(run):
        if not isinstance(dataset, ImagesConfig):
            continue
        size, pixels = dataset.image_size, run.model.pixels_per_token()
        place: DataPath = (section, "dataset", "image_size")
        if size % pixels:
            message = f"image_size {size} is not divisible by {pixels} pixels per token"
            yield RuleViolation(
                message, (place, (section, "dataset")), hint=f"use a multiple of {pixels}"
            )
            continue
        wanted, written = run.model.image_seq_len(size), int(getattr(run, section).seq_len)
        follows = (
            section == "validation"
            and written == run.training.seq_len
            and size == getattr(run.training.dataset, "image_size", None)
        )
        if wanted != written and not follows:
            text = wanted - (size // pixels) ** 2
            message = (
                f"an image of {size} pixels and {text:,} text tokens need {wanted:,} tokens, "
                f"but {section}.seq_len is {written:,}"
            )
            yield RuleViolation(
                message, ((section, "seq_len"), place), hint=f"set {section}.seq_len: {wanted}"
            )


@rule("images-divide-over-cp")
def images_divide_over_cp(run: Recipe) -> Iterator[RuleViolation]:
    """Require text and image tokens to be divisible by context_parallel_degree.

    Context-parallel ranks share the text and the image of each sequence: the tokens of either must
    be a multiple of context_parallel_degree, and of twice that with the load balancer headtail.
    """
    degree, pieces = (
        run.parallelism.context_parallel_degree,
        get_cp_chunks_per_rank(run.parallelism),
    )
    if run.model.modality != "images" or degree == 1:
        return
    unit = degree * pieces
    divisor = (
        f"{unit} ({pieces} x context_parallel_degree {degree})"
        if pieces > 1
        else f"context_parallel_degree {degree}"
    )
    text = run.model.image_seq_len(0)
    if text % unit:
        message = f"{text:,} text tokens are not divisible by {divisor}"
        yield RuleViolation(
            message,
            (TEXT_LENGTH, CONTEXT, BALANCER),
            hint=f"use a multiple of {unit}, such as {round_up_to_multiple(text, unit)}",
        )
    for section, dataset in get_section_datasets(run):
        if not isinstance(dataset, ImagesConfig):
            continue
        size, pixels = dataset.image_size, run.model.pixels_per_token()
        tokens = (size // pixels) ** 2
        if size % pixels == 0 and tokens % unit:
            place: DataPath = (section, "dataset", "image_size")
            message = (
                f"an image of {size} pixels has {tokens:,} tokens, which are not divisible "
                f"by {divisor}"
            )
            yield RuleViolation(
                message,
                (place, CONTEXT, BALANCER),
                hint="use another image_size, or fewer ranks",
            )


@rule("encoders-exist", level="environment")
def encoders_exist(run: Recipe) -> Iterator[RuleViolation]:
    """Require the encoders of an image model to exist.

    They are folders with a config.json, and a file for the autoencoder. `tiny` stands for an
    encoder that needs no files.
    """
    encoder = getattr(run.model, "encoder", None)
    if run.model.modality != "images" or encoder is None:
        return
    for name in ENCODERS:
        written = str(getattr(encoder, name))
        path = Path(written)
        exists = path.is_file() if name == "autoencoder_path" else (path / "config.json").is_file()
        if written != "tiny" and not exists:
            message = (
                f"file not found: '{written}'"
                if name == "autoencoder_path"
                else f"'{written}' has no encoder: config.json not found"
            )
            yield RuleViolation(
                message,
                (("model", "encoder", name),),
                hint=f"paths are relative to {Path.cwd()}; tiny needs no files",
                code="file",
            )


@rule("pictures-are-there", level="environment")
def images_have_captions(run: Recipe) -> Iterator[RuleViolation]:
    """Require images with captions, or an uncompressed tar file.

    A folder of images must have at least one with a caption: a .txt file of the same name next to
    it. The first tar file must be a valid one, without compression.
    """
    for place, dataset in get_all_datasets(run):
        if not isinstance(
            dataset, FolderImagesConfig | WebDatasetConfig
        ) or not matches_existing_path(dataset.path):
            continue  # paths-exist reports missing files
        try:
            check_image_files(dataset)
        except ProblemsFound as found:
            for problem in found.problems:
                yield RuleViolation(
                    problem.message, ((*place, "path"), place), hint=problem.hint, code="data"
                )


def check_image_files(dataset: FolderImagesConfig | WebDatasetConfig) -> None:
    """Check that the files of a dataset hold images.

    Raises:
        ProblemsFound: With code `data` if they do not.
    """
    if isinstance(dataset, FolderImagesConfig):
        images = resolve_data_files(dataset.path, IMAGE_SUFFIXES)
        if not any(image.with_suffix(CAPTION_SUFFIX).is_file() for image in images):
            message = f"'{dataset.path}' has {pluralize(len(images), 'image')}, but no captions"
            caption = images[0].with_suffix(CAPTION_SUFFIX).name
            hint = f"write the caption of '{images[0].name}' to '{caption}' in the same folder"
            raise problem_error("data", message, path=("path",), hint=hint)
        return
    file = resolve_data_files(dataset.path, TAR_SUFFIXES)[0]
    try:
        with tarfile.open(file, "r:") as archive:
            archive.next()
    except (tarfile.TarError, OSError) as error:
        raise unreadable_tar_error(file, error) from None
