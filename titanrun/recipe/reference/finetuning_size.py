"""Batch, epochs and held-out records of a fine-tuning recipe, by what its data amounts to."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import DatasetConfig, TextDatasetConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.holdout_limits import HOLDOUT_SHARE, MIN_DOCUMENTS
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig
from titanrun.config.problems import ProblemsFound
from titanrun.config.registry import validate_choice
from titanrun.recipe.rules.epoch_length import count_training_sequences, get_least_batch
from titanrun.recipe.rules.small_files import (
    TEXT_READERS,
    count_text_tokens,
    read_small_records,
)

MIXTURE = "mixture"
USUAL_BATCH = 16
MIN_STEPS_OF_EPOCH = 10
"""Steps of an epoch below which the batch is made smaller, as far as it goes."""
MIN_STEPS = 30
"""Steps of a run below which it gets more epochs: a few updates change a model little."""
MAX_EPOCHS = 10
"""More epochs of a few records mostly teach a model to repeat them."""
USUAL_VALIDATION_FREQ = 50
VALIDATIONS = 5


@dataclass(frozen=True, slots=True)
class FinetuningSize:
    """Settings that depend on the amount of data.

    Args:
        global_batch_size: sequences of a step.
        epochs: passes over the data.
        holdout: share of the records that are held out, or their number; None if they are too few.
        validation_freq: steps between validations.
        steps: steps of the run, None if the data was not counted.
        sequences: sequences of an epoch, None if the data was not counted.
    """

    global_batch_size: int = USUAL_BATCH
    epochs: int = 1
    holdout: float | None = HOLDOUT_SHARE
    validation_freq: int = USUAL_VALIDATION_FREQ
    steps: int | None = None
    sequences: int | None = None


def choose_size(
    settings: Mapping[str, Any], folder: Path, template: str | None, *, seq_len: int
) -> FinetuningSize:
    """Return what suits the data: the usual values unless its files are small enough to count.

    Args:
        settings: Settings of the dataset.
        folder: Folder of the model and its tokenizer.
        template: Name of the chat template, None for the one in the folder.
        seq_len: Tokens of a sequence.
    """
    with suppress(ProblemsFound, OSError, ValueError):
        # validate names what is wrong with the data
        return count_and_choose(settings, folder, template, seq_len) or FinetuningSize()
    return FinetuningSize()


def count_and_choose(
    settings: Mapping[str, Any], folder: Path, template: str | None, seq_len: int
) -> FinetuningSize | None:
    """Return what suits data in small files, None if it is not counted."""
    dataset = validate_choice(DatasetConfig, settings)
    if isinstance(dataset, TextDatasetConfig):
        return count_texts(dataset, folder, seq_len)
    if not isinstance(dataset, ChatDatasetConfig | RepliesConfig) or dataset.path is None:
        return None
    records = read_small_records(dataset.path)
    if records is None:
        return None
    held = count_held_out(len(records))
    sequences = count_training_sequences(
        dataset,
        HuggingFaceTokenizerConfig(path=str(folder), chat_template=template),
        sample_length=seq_len + 1,
        holdout=held,
    )
    if not sequences:
        return None
    return fit_steps(sequences, held=held, min_batch=get_least_batch(dataset))


def count_texts(dataset: TextDatasetConfig, folder: Path, seq_len: int) -> FinetuningSize | None:
    """Return what suits texts in small files, None if they are not counted."""
    records = read_small_records(dataset.path, TEXT_READERS)
    tokenizer = HuggingFaceTokenizerConfig(path=str(folder))
    tokens = None if records is None else count_text_tokens(dataset.column, tokenizer, records)
    if not tokens:
        return None
    held = count_held_out(len(tokens))
    share = 1 - (held or 0) / len(tokens)
    # which texts are held out is not looked at: so many sequences are left on average
    sequences = int(share * sum(tokens)) // (seq_len + 1)
    return fit_steps(max(1, sequences), held=held, min_batch=1)


def count_held_out(records: int) -> int | None:
    """Return how many of the records are held out, None if they are too few for two sides."""
    if records < 2 * MIN_DOCUMENTS:
        return None
    return max(MIN_DOCUMENTS, round(HOLDOUT_SHARE * records))


def fit_steps(sequences: int, *, held: float | None, min_batch: int) -> FinetuningSize:
    """Return the settings with which a number of sequences trains for enough steps."""
    batch = USUAL_BATCH
    while batch > min_batch and sequences // batch < MIN_STEPS_OF_EPOCH:
        batch //= 2
    epochs = min(MAX_EPOCHS, math.ceil(MIN_STEPS * batch / sequences))
    steps = epochs * sequences // batch
    freq = min(USUAL_VALIDATION_FREQ, max(1, steps // VALIDATIONS))
    return FinetuningSize(batch, epochs, held, freq, steps, sequences)


def join_sources(
    sources: Sequence[dict[str, Any]], sizes: Sequence[FinetuningSize]
) -> tuple[dict[str, Any], FinetuningSize]:
    """Return the dataset of all sources and what suits it; several are a mixture.

    Sources that were counted have their numbers of sequences as weights, so that an epoch reads
    each once. A mixture holds out a share, of which each source has its part.
    """
    if len(sources) == 1:
        return sources[0], sizes[0]
    counts = [size.sequences for size in sizes]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return {"name": MIXTURE, "sources": [{"dataset": one} for one in sources]}, FinetuningSize()
    weighted = [
        {"dataset": source, "weight": count} for source, count in zip(sources, known, strict=True)
    ]
    held = None if all(size.holdout is None for size in sizes) else HOLDOUT_SHARE
    joined = fit_steps(sum(known), held=held, min_batch=2)
    return {"name": MIXTURE, "sources": weighted}, joined
