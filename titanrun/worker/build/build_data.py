"""Builders of a run's data: tokenizer, datasets, data loader, collator and validators."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.dealt_dataloader import DealtDataLoader
from titanrun.components.data.document_ids import DocumentIdFn, get_document_id_fn
from titanrun.components.data.document_split import HOLDOUT, HOLDOUT_BY, Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.token_collator import Collator, TokenCollator
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.components.validation.validator import Validator, ValidatorGroup
from titanrun.config.lazy_module import LazyModule
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath, ProblemsFound, problem_error
from titanrun.config.tree import format_path
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.config import AttentionConfig, unwrap_auto
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import DATA_FOLDER
from titanrun.worker.build.taught_data import maybe_add_predictions

if TYPE_CHECKING:
    from titanrun.components.data import stream_head
else:
    # imported only for streams: it imports the readers of all file formats
    stream_head = LazyModule("titanrun.components.data.stream_head")


log = logging.getLogger(__name__)


def build_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """Build the tokenizer, or return None if the recipe has no tokenizer.

    Raises:
        ProblemsFound: the tokenizer has more entries than the model.
    """
    config = recipe.tokenizer
    if config is None:
        return None
    assert config != "auto"
    with nest_problems(("tokenizer",)):
        tokenizer: Tokenizer = config.load_builder()(config)
        known = unwrap_auto(recipe.model.vocab_size)
        if tokenizer.vocab_size > known:
            message = (
                f"the tokenizer has {tokenizer.vocab_size:,} entries, "
                f"but model.vocab_size is {known:,}"
            )
            raise problem_error(
                "conflict", message, hint=f"set model.vocab_size to {tokenizer.vocab_size} or more"
            )
    return tokenizer


def build_document_id_fn(recipe: Recipe, tokenizer: Tokenizer | None) -> DocumentIdFn:
    """Build the function that adds document ids to batches, for attention within documents.

    Raises:
        ProblemsFound: attention must not cross documents, but nothing in the data separates them.
    """
    attention = getattr(recipe.model, "attention", None)
    source, needs_starts = None, False
    if isinstance(attention, AttentionConfig):
        source, needs_starts = attention.documents, attention.backend == "varlen"
    eos_id = None if tokenizer is None else tokenizer.eos_id
    return get_document_id_fn(source, eos_id=eos_id, needs_starts=needs_starts)


@dataclass(frozen=True, slots=True)
class DataParallelRank:
    """Data-parallel rank and size, in the replica group of this rank if there are several."""

    dp_rank: int = 0
    dp_size: int = 1


def build_dataloader(
    recipe: Recipe, tokenizer: Tokenizer | None, run_dir: Path, data_parallel_rank: DataParallelRank
) -> DistributedDataLoader:
    """Build the loader of this rank's part of the training data."""
    training, path = recipe.training, ("training", "dataset")
    rows = build_dataset(
        training.dataset,
        path,
        recipe,
        tokenizer=tokenizer,
        seq_len=training.seq_len,
        run_dir=run_dir,
        holdout=get_holdout(recipe),
    )
    rows = maybe_add_predictions(recipe, rows, "training")
    assert training.global_batch_size != "auto"
    piece_size = training.local_batch_size * data_parallel_rank.dp_size
    loader = (
        partial(DealtDataLoader, piece_size=piece_size)
        if recipe.fault_tolerance.enable
        else DistributedDataLoader
    )
    with nest_problems(path):
        return loader(
            rows,
            seed=recipe.debug.seed,
            shuffle=training.dataset.shuffle,
            repeat=training.dataset.repeat,
            global_batch_size=training.global_batch_size,
            dp_rank=data_parallel_rank.dp_rank,
            dp_size=data_parallel_rank.dp_size,
            config_path=path,
            config=training.dataloader,
        )


def build_collator(recipe: Recipe, device: torch.device) -> Collator:
    """Build the collator of token ids, or of the model family for other modalities."""
    if recipe.model.modality == "tokens":
        return TokenCollator(
            unwrap_auto(recipe.model.vocab_size), appends_padding=recipe.loss.head == "scalar"
        )
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    build = load_family_module(type(recipe.model), "collator").build_family_collator
    collator: Collator = build(recipe.model, device=device, dtype=precision.compute_dtype)
    return collator


def enable_pin_memory(
    collator: Collator, config: DataLoaderConfig, device: torch.device
) -> Collator:
    """Return the collator with pinned memory if the recipe enables it and the device copies."""
    if isinstance(collator, TokenCollator) and config.pin_memory and is_accelerator(device):
        return replace(collator, pin_memory=True)
    return collator


def build_validator(
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    run_dir: Path,
    data_parallel_rank: DataParallelRank,
    collator: Collator,
) -> ValidatorGroup | None:
    """Build the validators of all held-out datasets, or return None if validation is disabled."""
    config = recipe.validation
    if not config.enable:
        return None
    assert config.seq_len != "auto"
    found = {}
    for one in list_held_out_sets(recipe):
        rows = build_dataset(
            one.dataset,
            one.path,
            recipe,
            tokenizer=tokenizer,
            seq_len=config.seq_len,
            run_dir=run_dir,
            holdout=one.holdout,
            max_rows=count_validation_rows(recipe),
        )
        if len(rows) == 0:
            raise problem_error(
                "data",
                "the held-out data has no sequences",
                path=one.path,
                hint="use more data or a smaller validation.seq_len",
            )
        rows = maybe_add_predictions(recipe, rows, one.section)
        found[one.prefix] = Validator(
            config,
            dataset=rows,
            collator=collator,
            dp_rank=data_parallel_rank.dp_rank,
            dp_size=data_parallel_rank.dp_size,
            recipe_path=one.path,
        )
    return ValidatorGroup(found)


def count_validation_rows(recipe: Recipe) -> int | None:
    """Return the number of sequences that validation reads of each set, None for all."""
    config = recipe.validation
    assert config.local_batch_size != "auto"
    return None if config.steps is None else config.steps * config.local_batch_size


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """Data that is validated: the prefix of its metrics, and where its dataset is in the recipe."""

    prefix: str
    path: DataPath
    dataset: DatasetConfig
    holdout: Holdout | None = None

    @property
    def section(self) -> str:
        """Name of the set: validation, or validation.further[0] and so on."""
        return "validation" if self.holdout is not None else format_path(self.path[:-1])


def list_held_out_sets(recipe: Recipe) -> list[HeldOutSet]:
    """Return the sets of a recipe that validates, that of `validation.dataset` first.

    Without one, it is the documents that training holds out.
    """
    config, holdout = recipe.validation, get_holdout(recipe, is_validation=True)
    if holdout is not None:
        dataset = recipe.training.dataset
        first = HeldOutSet("validation", ("training", "dataset"), dataset, holdout)
    else:
        assert config.dataset is not None and config.dataset != "auto"
        first = HeldOutSet("validation", ("validation", "dataset"), config.dataset)
    further = [
        HeldOutSet(
            f"validation/{one.id}", ("validation", "further", number, "dataset"), one.dataset
        )
        for number, one in enumerate(config.further)
    ]
    return [first, *further]


def get_holdout(recipe: Recipe, *, is_validation: bool = False) -> Holdout | None:
    """Return one side of the split of the training documents, None if none are held out."""
    config = recipe.validation
    if config.holdout is None:
        return None
    return Holdout(config.holdout, config.holdout_by, is_validation=is_validation)


def build_dataset(
    config: DatasetConfig,
    path: DataPath,
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None,
    seq_len: int,
    run_dir: Path,
    holdout: Holdout | None = None,
    max_rows: int | None = None,
) -> IndexedDataset:
    """Build one dataset, or one side of the split of its documents.

    Of a stream, at least `max_rows` sequences are tokenized, or all if it is None.

    Raises:
        ProblemsFound: the dataset contains ids for which the model has no embedding.
    """
    with move_holdout_problems(), nest_problems(path):
        # a dataset of a plug-in need not know the keyword
        split = {} if holdout is None else {"holdout": holdout}
        build = config.load_builder()
        if config.is_streamed:
            retries = RetryPolicy(recipe.validation.dataloader.retry_timeout_seconds)
            build = partial(stream_head.build_stream_head, rows=max_rows, retries=retries)
        rows: IndexedDataset = build(
            config,
            tokenizer=tokenizer,
            # a scalar head reads the last token of a conversation, which must be an input
            sample_length=seq_len if recipe.loss.head == "scalar" else seq_len + 1,
            cache_folder=get_cache_folder(recipe, run_dir),
            **split,
        )
        log_source_shares(rows, path, holdout)
        known = unwrap_auto(recipe.model.vocab_size)
        if known is not None and rows.max_token_id >= known:
            message = (
                f"the data contains token id {rows.max_token_id}, but model.vocab_size is {known:,}"
            )
            raise problem_error(
                "data",
                message,
                hint=f"set model.vocab_size to {rows.max_token_id + 1} or more, or tokenize again",
            )
    return rows


def log_source_shares(rows: IndexedDataset, path: DataPath, holdout: Holdout | None) -> None:
    """Log the shares of the sources of a mixture, with the section of data that is validated."""
    section = format_path(path[:-1]) if path[0] == "validation" else "validation"
    is_validation = path[0] == "validation" or (holdout is not None and holdout.is_validation)
    for line in getattr(rows, "share_lines", ()):
        log.info("%s%s", f"{section}: " * is_validation, line)


@contextmanager
def move_holdout_problems() -> Iterator[None]:
    """Move problems with the split of a dataset's documents to the section validation."""
    try:
        yield
    except ProblemsFound as error:
        moved = [
            replace(problem, path=("validation", problem.path[-1]))
            if problem.path and problem.path[-1] in (HOLDOUT, HOLDOUT_BY)
            else problem
            for problem in error.problems
        ]
        raise ProblemsFound(moved) from error


def get_cache_folder(recipe: Recipe, run_dir: Path) -> Path:
    """Return the folder of tokenized data."""
    shared = recipe.training.data_cache
    assert shared != "auto"
    return run_dir / DATA_FOLDER if shared is None else Path(shared)
