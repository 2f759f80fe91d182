"""Rules about data that has no records, or none that is short enough for a sequence."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.config import FilesConfig
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.long_documents import (
    describe_long_documents,
    round_up_to_power,
)
from titanrun.components.tokenizers.config import TokenizerConfig
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import get_all_datasets, matches_existing_path
from titanrun.recipe.rules.holdout import get_document_noun
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import (
    LIGHT_READERS,
    READERS,
    count_document_tokens,
    read_small_records,
)

FIRST_RECORDS = 8
"""Records whose lengths are looked at first: the others are read only if none of them fits."""
SECTIONS = ("training", "validation")
EMPTY_HINT = "the files are empty: name other files"


@rule("files-have-records", level="environment")
def files_have_records(run: Recipe) -> Iterator[RuleViolation]:
    """Require a record in the files of a dataset.

    An empty file is often what a command left that failed. Write it again, or name other files.
    """
    for place, dataset in get_all_datasets(run):
        path = getattr(dataset, "path", None)
        if not isinstance(dataset, FilesConfig | ChatDatasetConfig | RepliesConfig) or path is None:
            continue
        if matches_existing_path(path) and not may_have_records(path):
            yield RuleViolation(
                f"'{path}' holds no documents",
                ((*place, "path"), place),
                hint=EMPTY_HINT,
                code="data",
                section=place,
            )


def may_have_records(path: str) -> bool:
    """Return whether files may have a record: one is found, or they are not read here."""
    try:
        files = resolve_data_files(path, (*READERS, ".txt", ".arrow"))
        return any(has_record(file) for file in files)
    except (ProblemsFound, OSError, ValueError):
        return True  # other rules and the run name what is wrong with the files


def has_record(file: Path) -> bool:
    """Return whether a file has a record, by its size if reading it takes a library."""
    suffix = get_data_suffix(file)
    if suffix not in LIGHT_READERS:
        return file.stat().st_size > 0
    return next(LIGHT_READERS[suffix](file), None) is not None


@rule("records-fit-a-sequence", level="environment")
def records_fit_a_sequence(run: Recipe) -> Iterator[RuleViolation]:
    """Require a sequence to hold a conversation or a pair.

    Those that are longer are left out, or refused with too_long: refuse. Set seq_len higher, or
    use shorter ones. The records of small files are counted here; others when they are tokenized.
    """
    for place, dataset in get_all_datasets(run):
        section = str(place[0])
        if (
            section not in SECTIONS
            or not isinstance(dataset, ChatDatasetConfig | RepliesConfig)
            or not isinstance(run.tokenizer, TokenizerConfig)
            or dataset.too_long == "cut"
        ):
            continue
        seq_len = int(run.validation.seq_len) if section == "validation" else run.training.seq_len
        # a scalar head predicts no next token
        room = seq_len + (run.loss.head != "scalar")
        lengths: list[int] = []
        with suppress(ProblemsFound, OSError, ValueError):
            # other rules and the run name what is wrong with the data
            lengths = find_unfit_lengths(dataset, run.tokenizer, room)
        if lengths:
            message = describe_long_documents(
                get_document_noun(dataset),
                sum(length > room for length in lengths),
                len(lengths),
                sample_length=room,
                longest=max(lengths),
            )
            yield RuleViolation(
                message,
                ((section, "seq_len"), (*place, "too_long"), place),
                hint=suggest_fitting_length(run, section, dataset, lengths),
                code="data",
                section=place,
            )


def find_unfit_lengths(
    dataset: ChatDatasetConfig | RepliesConfig, tokenizer: TokenizerConfig, room: int
) -> list[int]:
    """Return the tokens of all documents if the dataset cannot be built of them, else nothing.

    The first records decide where one of them fits. Data that is not read before a run fits.

    Args:
        dataset: Conversations or pairs in files.
        tokenizer: Tokenizer that encodes them.
        room: Tokens of a sequence with its label.

    Raises:
        ProblemsFound: If the records, the template or the tokenizer cannot be read.
    """
    records = None if dataset.path is None else read_small_records(dataset.path)
    if not records:
        return []
    is_refused = dataset.too_long == "refuse"
    for counted in (records,) if is_refused else (records[:FIRST_RECORDS], records):
        lengths = list(
            chain.from_iterable(count_document_tokens(dataset, tokenizer, counted) or ())
        )
        fits = [length <= room for length in lengths]
        if all(fits) if is_refused else any(fits):
            return []
    return lengths


def suggest_fitting_length(
    run: Recipe, section: str, dataset: ChatDatasetConfig | RepliesConfig, lengths: Sequence[int]
) -> str:
    """Return the seq_len that holds the longest document, as far as the model reads as many."""
    limit, longest = int(run.model.max_seq_len), max(lengths)
    noun, fitting = get_document_noun(dataset), min(limit, round_up_to_power(longest))
    is_refused = dataset.too_long == "refuse"
    cut = "too_long: cut" if isinstance(dataset, ChatDatasetConfig) else ""
    if longest <= fitting:
        others = f", or {' or '.join(filter(None, ('too_long: drop', cut)))}" if is_refused else ""
        return f"set {section}.seq_len: {fitting}, which holds the longest{others}"
    held = sum(length <= limit for length in lengths)
    if held:
        longer = (
            f"set too_long: drop, and {section}.seq_len" if is_refused else f"set {section}.seq_len"
        )
        return f"{longer}: {limit}, which holds {pluralize(held, noun)}"
    others = f", or {cut}" if cut else ""
    return f"the model reads {limit} tokens: use shorter {noun}s{others}"
