"""The tokenizer and the chat template that checkpoints hold."""

import atexit
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig, TokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import (
    OTHER_FILES,
    SPECIAL_TOKEN_FILES,
    TOKENIZER_JSON,
    VOCABULARY_AND_MERGES,
)
from titanrun.recipe.recipe import Recipe
from titanrun.worker.training_template import find_training_end_ids
from titanrun.worker.weights.huggingface_export import GENERATION_FILE, collect_huggingface_files

TOKENIZER_FILES = (
    TOKENIZER_JSON,
    *VOCABULARY_AND_MERGES,
    *SPECIAL_TOKEN_FILES,
    *OTHER_FILES,
    GENERATION_FILE,
)


def collect_assets(recipe: Recipe) -> dict[str, bytes]:
    """Return the files that go with a model's weights, by name; none without a tokenizer.

    These are the tokenizer's files, the chat template that the run trains with, and
    generation_config.json.

    Raises:
        ProblemsFound: A data problem if the tokenizer or the template cannot be read.
    """
    if not isinstance(recipe.tokenizer, TokenizerConfig):
        return {}
    files, texts = collect_huggingface_files(
        recipe.tokenizer, recipe.model, find_training_end_ids(recipe)
    )
    return {**{file.name: file.read_bytes() for file in files}, **texts}


def use_saved_tokenizer(recipe: Recipe, checkpoint: AnyPath) -> Recipe:
    """Return the recipe with the tokenizer that a checkpoint holds.

    Checkpoints of earlier versions hold none, and of runs on token ids: then it is the recipe's.
    """
    if not isinstance(recipe.tokenizer, TokenizerConfig):
        return recipe
    names = [name for name in TOKENIZER_FILES if name in read_manifest(checkpoint).files]
    if not names:
        return recipe
    folder = checkpoint if isinstance(checkpoint, Path) else fetch_files(checkpoint, names)
    tokenizer = HuggingFaceTokenizerConfig(
        path=str(folder), stop_tokens=recipe.tokenizer.stop_tokens
    )
    # not through plain data, which fails validation if the worker has filled in a secret
    return type(recipe).model_validate({**dict(recipe), "tokenizer": tokenizer})


def fetch_files(folder: AnyPath, names: Iterable[str]) -> Path:
    """Copy files of a folder in object storage; the copy is deleted when the process ends."""
    copy = Path(tempfile.mkdtemp(prefix="titanrun-assets-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for name in names:
        (copy / name).write_bytes((folder / name).read_bytes())
    return copy
