"""Rules about documents that training holds out for validation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    ConversationsConfig,
)
from titanrun.components.data.config import (
    DatasetConfig,
    DocumentsConfig,
    FilesConfig,
    MixtureDatasetConfig,
    TinyDatasetConfig,
)
from titanrun.components.data.replies_config import (
    PreferenceDatasetConfig,
    RepliesConfig,
    TinyPairsConfig,
)
from titanrun.components.data.spec.data_files import get_data_suffix, resolve_data_files
from titanrun.components.data.spec.file_columns import (
    check_columns,
    find_file_columns,
    get_required_columns,
)
from titanrun.components.data.spec.holdout_hash import (
    HASH_RANGE,
    compute_holdout_hash,
    compute_holdout_threshold,
    make_column_key,
    make_messages_key,
    make_pair_key,
    make_text_key,
)
from titanrun.components.data.spec.holdout_limits import (
    MIN_DOCUMENTS,
    ONE_DOCUMENT_HINT,
    describe_small_side,
)
from titanrun.components.validation.config import MAX_SHARE
from titanrun.config.base import iter_nested_configs
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.chat import parse_conversations
from titanrun.recipe.rules.data import matches_existing_path
from titanrun.recipe.rules.registry import RuleViolation, rule
from titanrun.recipe.rules.small_files import read_small_records

HOLDOUT: DataPath = ("validation", "holdout")
HOLDOUT_BY: DataPath = ("validation", "holdout_by")
TRAINING_DATASET: DataPath = ("training", "dataset")
DOCUMENT_DATASETS = (
    DocumentsConfig,
    ConversationsConfig,
    RepliesConfig,
    TinyDatasetConfig,
    TinyPairsConfig,
)


@rule("holdout-has-documents")
def holdout_has_documents(run: Recipe) -> Iterator[RuleViolation]:
    """Require documents from which validation.holdout can hold some out.

    Text, conversations and pairs are split by their documents, token files and images are not. The
    held-out documents are what validation.dataset names otherwise: use one of the two, and
    validation.further for more data.
    """
    size = run.validation.holdout
    if size is None:
        return
    if isinstance(run.validation.dataset, DatasetConfig):
        yield RuleViolation(
            "validation.holdout holds out documents to validate on, but validation.dataset is set",
            (HOLDOUT, ("validation", "dataset")),
            hint="remove one of them, or move the dataset to validation.further",
        )
    if isinstance(run.training.dataset, MixtureDatasetConfig) and size >= 1:
        yield RuleViolation(
            f"a mixture holds out a share of its documents, not {size:g} of them",
            (HOLDOUT, TRAINING_DATASET),
            hint=advise_equal_share(run, int(size)),
        )
    if run.training.dataset.is_streamed:
        yield from find_stream_holdout_violations(run, size)
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, DOCUMENT_DATASETS):
            yield RuleViolation(
                f"dataset '{dataset.name}' has no documents that could be held out",
                (HOLDOUT, place),
                hint="set rl.validation.dataset to prompts of their own instead"
                if run.rl is not None
                else "set validation.dataset instead, or train on text or conversations",
            )


def find_stream_holdout_violations(run: Recipe, size: float) -> Iterator[RuleViolation]:
    """Yield what keeps a stream from holding documents out: nobody knows how many it has."""
    if size >= 1 and not isinstance(run.training.dataset, MixtureDatasetConfig):
        yield RuleViolation(
            f"a stream holds out a share of its documents, not {size:g} of them",
            (HOLDOUT, TRAINING_DATASET),
            hint="set validation.holdout to a share: 0.05 of a small stream, 0.001 of a large one",
        )
    if run.validation.enable and run.validation.steps is None:
        yield RuleViolation(
            "validation on held-out documents of a stream would read all of it: validation.steps "
            "is null",
            (("validation", "steps"), HOLDOUT),
            hint="set validation.steps, for example to 50",
        )


@rule("holdout-column-exists", level="environment")
def holdout_column_exists(run: Recipe) -> Iterator[RuleViolation]:
    """Require the column that validation.holdout_by names.

    Every source of the training data needs it, because its value decides which documents are held
    out. The first of the files is checked.
    """
    column = run.validation.holdout_by
    if run.validation.holdout is None or column is None:
        return
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, FilesConfig | ChatDatasetConfig | RepliesConfig):
            continue
        try:
            if dataset.path is not None and matches_existing_path(dataset.path):
                file = resolve_data_files(dataset.path)[0]
                check_columns(
                    find_file_columns(file) or [column], {column: HOLDOUT_BY}, f"'{file}'"
                )
        except ProblemsFound as error:
            for problem in error.problems:
                if problem.path == HOLDOUT_BY:
                    yield RuleViolation(
                        problem.message, (HOLDOUT_BY, place), hint=problem.hint, code="data"
                    )


@rule("holdout-has-enough-files", level="environment")
def holdout_has_enough_files(run: Recipe) -> Iterator[RuleViolation]:
    """Require enough documents for both sides of validation.holdout.

    A .txt file is one document, whatever its length, so that nothing can be held out of a single
    one. Write a jsonl file with one text per line, or name more files. Documents of other files are
    counted when they are tokenized.
    """
    if run.validation.holdout is None:
        return
    needed = MIN_DOCUMENTS
    if not isinstance(run.training.dataset, MixtureDatasetConfig):
        # a source of a mixture may lie on the side that is trained on
        needed *= 2
    for place, dataset in list_training_sources(run):
        if not isinstance(dataset, FilesConfig) or not matches_existing_path(dataset.path):
            continue
        try:
            files = resolve_data_files(dataset.path)
        except ProblemsFound:
            continue  # the run names what is wrong with the path
        if len(files) < needed and all(get_data_suffix(file) == ".txt" for file in files):
            yield RuleViolation(
                f"'{dataset.path}' has {pluralize(len(files), 'document')}, but validation.holdout "
                f"needs {needed}: a .txt file is one document",
                (HOLDOUT, (*place, "path")),
                hint=ONE_DOCUMENT_HINT,
                code="data",
            )


@rule("holdout-fills-both-sides", level="environment")
def holdout_fills_both_sides(run: Recipe) -> Iterator[RuleViolation]:
    """Require two documents on each side of validation.holdout.

    A hash of each document decides which are held out, so that a share of few documents may hold
    out none. Set a number of documents instead, or a larger share for a mixture. A source of a
    mixture that has none is not validated: a warning names the smallest share that reaches every
    source. Documents of small files are split here; those of other data when they are tokenized.
    """
    size, dataset = run.validation.holdout, run.training.dataset
    if size is None or dataset.is_streamed:
        return
    if isinstance(dataset, MixtureDatasetConfig):
        yield from find_mixture_violations(run, size)
        return
    hashes = hash_dataset(dataset, run.validation.holdout_by)
    if not hashes:
        return
    held, path = sum(is_chosen(size, hashes)), str(getattr(dataset, "path", None))
    noun = get_document_noun(dataset)
    found = describe_small_side(size, held, len(hashes), noun=noun, source=path)
    if found is not None:
        message, hint = found
        if len(set(hashes)) == 1 < len(hashes):
            hint = "equal texts and prompts stay together, and all are equal: use other data"
        yield RuleViolation(message, (HOLDOUT, (*TRAINING_DATASET, "path")), hint=hint)


def find_mixture_violations(run: Recipe, size: float) -> Iterator[RuleViolation]:
    """Yield which sources of a mixture have too few documents on a side, if they are small."""
    sources = list_training_sources(run)
    counted = [
        (place, dataset, hashes)
        for place, dataset in sources
        if (hashes := hash_dataset(dataset, run.validation.holdout_by))
    ]
    if size >= 1 or not counted:
        return
    held = [sum(is_chosen(size, hashes)) for _, _, hashes in counted]
    hint = advise_mixture_share([(dataset, hashes) for _, dataset, hashes in counted])
    if len(counted) == len(sources) and max(held) < MIN_DOCUMENTS:
        yield RuleViolation(
            f"validation.holdout {size:g} holds out fewer than {MIN_DOCUMENTS} documents of each "
            "source of the mixture",
            (HOLDOUT, TRAINING_DATASET),
            hint=hint,
        )
        return
    for (place, dataset, hashes), number in zip(counted, held, strict=True):
        noun, path = get_document_noun(dataset), str(getattr(dataset, "path", None))
        found = describe_small_side(size, number, len(hashes), noun=noun, source=path)
        if found is not None:
            is_unread = number < MIN_DOCUMENTS
            yield RuleViolation(
                found[0] + ", so that this source is not validated" * is_unread,
                (HOLDOUT, (*place, "path")),
                hint=hint,
                severity="warning" if is_unread else "error",
            )


def advise_equal_share(run: Recipe, count: int) -> str:
    """Return advice on the share of a mixture that is a number of its documents.

    Documents of small files are counted, so that the share holds out that many.
    """
    found = [
        (dataset, hash_dataset(dataset, run.validation.holdout_by))
        for _, dataset in list_training_sources(run)
    ]
    counted = [(dataset, hashes) for dataset, hashes in found if hashes]
    hashes = sorted(one for _, of_source in counted for one in of_source)
    if run.training.dataset.is_streamed or len(counted) < len(found) or not hashes:
        total = 10 ** math.ceil(math.log10(20 * count))
        return f"set validation.holdout to a share: {count:,} of {total:,} is {count / total:g}"
    share = min(round_share_up(hashes[min(count, len(hashes)) - 1]), MAX_SHARE)
    held = [sum(is_chosen(share, of_source)) for _, of_source in counted]
    left = [len(of_source) - out for (_, of_source), out in zip(counted, held, strict=True)]
    if max(held) < MIN_DOCUMENTS or min(left) < MIN_DOCUMENTS:
        return advise_mixture_share(counted)
    advice = (
        f"set validation.holdout: {share:g}, which holds out {sum(held):,} of the "
        f"{len(hashes):,} documents"
    )
    enough = find_smallest_share([of_source for _, of_source in counted])
    if min(held) >= MIN_DOCUMENTS or enough is None:
        return advice
    return (
        f"{advice}; {enough:g} holds out {sum(is_chosen(enough, hashes)):,}, and "
        f"{MIN_DOCUMENTS} or more of every source"
    )


def advise_mixture_share(sources: Sequence[tuple[DatasetConfig, Sequence[int]]]) -> str:
    """Return advice on a share that fills both sides of every source.

    Args:
        sources: Datasets, and the hashes of their documents.
    """
    enough = find_smallest_share([hashes for _, hashes in sources])
    if enough is not None:
        hashes = [one for _, of_source in sources for one in of_source]
        return (
            f"set validation.holdout: {enough:g}, the smallest share that holds out "
            f"{MIN_DOCUMENTS} of every source counted here: {sum(is_chosen(enough, hashes)):,} of "
            f"{len(hashes):,} documents"
        )
    dataset, _ = min(
        sources, key=lambda one: (find_smallest_share([one[1]]) is not None, len(one[1]))
    )
    return (
        f"no share up to {MAX_SHARE:g} holds out {MIN_DOCUMENTS} of every source and leaves "
        f"{MIN_DOCUMENTS}: add documents to '{getattr(dataset, 'path', None)}', or remove it from "
        "the mixture"
    )


def find_smallest_share(sources: Sequence[Sequence[int]]) -> float | None:
    """Return the smallest share of two digits that fills both sides of each source, or None."""
    if any(len(hashes) < 2 * MIN_DOCUMENTS for hashes in sources):
        return None
    share = round_share_up(max(sorted(hashes)[MIN_DOCUMENTS - 1] for hashes in sources))
    is_enough = share <= MAX_SHARE and all(
        MIN_DOCUMENTS <= sum(is_chosen(share, hashes)) <= len(hashes) - MIN_DOCUMENTS
        for hashes in sources
    )
    return share if is_enough else None


def round_share_up(last: int) -> float:
    """Return the smallest share of two digits that holds out the document with a hash."""
    needed = (last + 1) / HASH_RANGE
    scale: float = 10 ** (1 - math.floor(math.log10(needed)))
    return math.ceil(needed * scale) / scale


def hash_dataset(dataset: DatasetConfig, by: str | None) -> list[int] | None:
    """Return the hash of each document of a dataset in small files here, None of other data."""
    path = getattr(dataset, "path", None)
    if dataset.is_streamed or not isinstance(path, str) or not matches_existing_path(path):
        return None
    with suppress(ProblemsFound, OSError, ValueError):
        # the run names what is wrong with the files
        return hash_small_files(dataset, path, by)
    return None


def get_document_noun(dataset: DatasetConfig) -> str:
    """Return the name of a document, as the run has it."""
    if isinstance(dataset, PreferenceDatasetConfig):
        return "pair"
    return "document" if isinstance(dataset, FilesConfig) else "conversation"


def is_chosen(size: float, hashes: Sequence[int]) -> list[bool]:
    """Return for each document whether validation.holdout holds it out."""
    if not hashes:
        return []
    threshold = (
        compute_holdout_threshold(size)
        if size < 1
        else sorted(hashes)[min(int(size), len(hashes)) - 1] + 1
    )
    return [one < threshold for one in hashes]


def hash_small_files(dataset: DatasetConfig, path: str, by: str | None) -> list[int] | None:
    """Return the hash of each document, None if the files are large or need more than a parser."""
    if isinstance(dataset, FilesConfig):
        files = resolve_data_files(path)
        if dataset.format or dataset.filters or dataset.max_documents:
            return None
        if any(get_data_suffix(file) != ".jsonl" for file in files):
            return None
    elif not isinstance(dataset, ChatDatasetConfig | RepliesConfig):
        return None
    records = read_small_records(path)
    if records is None:
        return None
    return [hash_document(dataset, record, place, by) for place, record in records]


def hash_document(
    dataset: DatasetConfig, record: Mapping[str, Any], place: str, by: str | None
) -> int:
    """Return the hash of the document in a record, or of one of its columns."""
    if by is not None:
        check_columns(record, {by: HOLDOUT_BY}, place)
        return compute_holdout_hash(make_column_key(record[by]))
    if isinstance(dataset, FilesConfig):
        check_columns(record, get_required_columns(dataset), place)
        return compute_holdout_hash(make_text_key(str(record[dataset.column])))
    assert isinstance(dataset, ChatDatasetConfig | RepliesConfig)
    first, *others = parse_conversations(dataset, record, place)
    if isinstance(dataset, PreferenceDatasetConfig):
        both = [conversation.messages for conversation in (first, *others)]
        return compute_holdout_hash(make_pair_key(*both))
    hashed = first.messages[:-1] if isinstance(dataset, RepliesConfig) else first.asked
    return compute_holdout_hash(make_messages_key(hashed))


def list_training_sources(run: Recipe) -> list[tuple[DataPath, DatasetConfig]]:
    """Return the training dataset, or the sources of a mixture, with their paths."""
    return [
        (place, config)
        for place, config in iter_nested_configs(run.training.dataset, TRAINING_DATASET)
        if isinstance(config, DatasetConfig) and not isinstance(config, MixtureDatasetConfig)
    ]
