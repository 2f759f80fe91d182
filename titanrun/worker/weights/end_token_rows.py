"""Check of the embeddings of tokens that end replies, where adapters leave embeddings frozen."""

from pathlib import Path

import torch
from torch import Tensor

from titanrun.components.checkpoints.checkpoint_reader import CheckpointReader, LoadTolerance
from titanrun.components.checkpoints.huggingface import read_hf_folder
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.converters.config import AdapterConfig
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.components.tokenizers.end_of_turn import find_turn_end
from titanrun.components.tokenizers.spec.stop_tokens import load_special_token_texts
from titanrun.components.tokenizers.spec.tokenizer_files import load_vocab
from titanrun.config.problems import Problem
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import MODEL_PREFIX
from titanrun.worker.training_template import load_training_template, trains_replies
from titanrun.worker.weights.initial_weights import get_checkpoint, get_huggingface_folder

EMBEDDING = f"{MODEL_PREFIX}tok_embeddings.weight"
HF_EMBEDDING = "embed_tokens.weight"
SMALLEST_SHARE = 0.1
"""Rows below this share of the median norm were not trained: their optimizer only shrank them."""


def find_untrained_end_row(recipe: Recipe) -> Problem | None:
    """Return a warning if the token that ends replies has an embedding that was never trained.

    Adapters leave embeddings as they are, so the model could hardly recognize the token in earlier
    turns. Return None where weights are not on this machine, or embeddings train.

    Raises:
        ProblemsFound: the template, the tokenizer or the weights cannot be read.
    """
    has_adapters = any(isinstance(one, AdapterConfig) for one in recipe.converters)
    if not has_adapters or not trains_replies(recipe):
        return None
    assert isinstance(recipe.tokenizer, TokenizerConfig), "conversations require a tokenizer"
    folder = recipe.tokenizer.folder
    found = find_turn_end(load_training_template(recipe), load_special_token_texts(folder))
    number = None if found is None else load_vocab(folder).get(found.token or "")
    weights_VD = None if number is None else read_initial_embedding(recipe)
    if found is None or number is None or weights_VD is None or number >= len(weights_VD):
        return None
    norms_V = torch.linalg.vector_norm(weights_VD, dim=1, dtype=torch.float32)
    share = float(norms_V[number] / norms_V.median())
    if not share < SMALLEST_SHARE:
        return None
    return Problem(
        "conflict",
        f"the embedding of '{found.token}', which ends replies, has {share:.1%} of the median "
        "norm: the model never trained it, and with adapters it stays frozen",
        ("converters",),
        hint="train all weights, or take a chat template whose tokens the model knows",
        severity="warning",
        rule="end-of-turn-embedding",
    )


def read_initial_embedding(recipe: Recipe) -> Tensor | None:
    """Return the embeddings that the run starts from, None if they are not on this machine.

    Raises:
        ProblemsFound: a file of weights is damaged.
    """
    section = recipe.checkpoint
    if section.initial_load_in_hf:
        folder = get_huggingface_folder(section, recipe.model)
        if not isinstance(folder, Path) or not folder.is_dir():
            return None
        names = read_hf_folder(folder)
        found = min((one for one in names if one.endswith(HF_EMBEDDING)), key=len, default=None)
        table = None if found is None else names[found]
        return table if table is not None and table.is_floating_point() else None
    named = section.initial_load_path
    if named is None or is_storage_path(named) or not Path(named).is_dir():
        return None
    return read_saved_embedding(get_checkpoint(Path(named), section.folder))


def read_saved_embedding(checkpoint: CheckpointReader) -> Tensor | None:
    """Return the embeddings in a checkpoint, None if it holds only adapters."""
    saved = checkpoint.load_tensor_metadata().get(EMBEDDING)
    if saved is None:
        return None
    table = torch.empty(saved.shape, dtype=saved.dtype)
    checkpoint.load_tensors({EMBEDDING: table}, tolerance=LoadTolerance(allows_extra=True))
    return table
