"""Length of a sequence in a fine-tuning recipe, by the lengths of its records."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.config.registry import validate_choice
from titanrun.recipe.reference.record_words import TEXT_DATASETS
from titanrun.recipe.resolving.recipe_from_hf import USUAL_SEQ_LEN, read_context, read_usual_seq_len
from titanrun.recipe.rules.small_files import (
    READERS,
    Record,
    count_document_tokens,
    read_small_records,
)

SHORTEST, LONGEST = 128, 8192
NOUNS = {
    None: ("conversation", "conversations"),
    "pairs": ("pair", "pairs"),
    "labels": ("labelled reply", "labelled replies"),
}
SHARE_HELD = 0.95
"""Records that a sequence holds in any case; it is made longer only for records of its kind."""
MAX_STRETCH = 2
SAMPLE = 200
"""Records of a large file that are measured."""
UNKNOWN = "tokens; longer records are left out"
SPLIT = "tokens; longer texts go on in the next sequence"


@dataclass(frozen=True, slots=True)
class SequenceLength:
    """Tokens of a sequence, and a comment that says why."""

    seq_len: int
    reason: str = UNKNOWN


def choose_sequence_length(
    settings: Mapping[str, Any], folder: Path, template: str | None
) -> SequenceLength:
    """Return the length that holds the records of the data, the usual one of other data.

    Args:
        settings: Settings of the dataset.
        folder: Folder of the model and its tokenizer.
        template: Name of the chat template, None for the one in the folder.
    """
    tokenizer = HuggingFaceTokenizerConfig(path=str(folder), chat_template=template)
    if settings["name"] in TEXT_DATASETS:
        return SequenceLength(read_usual_seq_len(folder), SPLIT)
    with suppress(ProblemsFound, OSError, ValueError):
        # validate names what is wrong with the data
        return measure_and_choose(settings, tokenizer, folder) or use_default_length(folder)
    return use_default_length(folder)


def use_default_length(folder: Path) -> SequenceLength:
    """Return the usual length, or the context of the model where that is shorter."""
    return SequenceLength(read_usual_seq_len(folder))


def measure_and_choose(
    settings: Mapping[str, Any], tokenizer: HuggingFaceTokenizerConfig, folder: Path
) -> SequenceLength | None:
    """Return the length that holds the records of files, None if they are not measured."""
    dataset = validate_choice(DatasetConfig, settings)
    if not isinstance(dataset, ChatDatasetConfig | RepliesConfig) or dataset.path is None:
        return None
    small = read_small_records(dataset.path)
    records = read_first_records(dataset.path) if small is None else small
    tokens = count_document_tokens(dataset, tokenizer, records) if records else None
    lengths = sorted(length for of_record in tokens or () for length in of_record)
    if not lengths:
        return None
    chosen = fit_length(lengths, is_packed=getattr(dataset, "packing", None) is not None)
    context = read_context(folder) or USUAL_SEQ_LEN
    chosen = min(chosen, context)
    among = "" if small is not None else "the first "
    counted = f"{among}{pluralize(len(lengths), *NOUNS[dataset.compares])}"
    return SequenceLength(chosen, describe_fit(lengths, chosen, counted))


def read_first_records(path: str) -> list[Record]:
    """Return the first records of the first file."""
    file = resolve_data_files(path, tuple(READERS))[0]
    return list(islice(READERS[get_data_suffix(file)](file), SAMPLE))


def fit_length(lengths: Sequence[int], *, is_packed: bool) -> int:
    """Return the power of two that holds ascending lengths, but those of a few outliers.

    Packed documents fill sequences of the usual length, so that they only make it longer.
    """
    usual = lengths[max(0, round(SHARE_HELD * len(lengths)) - 1)]
    held = round_up(usual)
    if lengths[-1] <= MAX_STRETCH * held:
        held = round_up(lengths[-1])
    return max(held, USUAL_SEQ_LEN) if is_packed else held


def round_up(length: int) -> int:
    """Return the power of two that is no less than a length, within the limits."""
    return min(LONGEST, max(SHORTEST, 1 << (length - 1).bit_length()))


def describe_fit(lengths: Sequence[int], chosen: int, counted: str) -> str:
    """Return the comment of a length: the longest document, or how many are left out.

    `counted` is how many were measured, in words.
    """
    longer = sum(length > chosen for length in lengths)
    if longer:
        return f"tokens; {longer} of {counted} {'is' if longer == 1 else 'are'} longer, left out"
    return f"tokens; the longest of {counted} has {lengths[-1]}"
