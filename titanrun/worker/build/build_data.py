"""Builders of a run's data: tokenizer, datasets, data loader, collator and validators."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.document_ids import DocumentIdFn, get_document_id_fn
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_collator import Collator, TokenCollator
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.components.validation.validator import Validator, ValidatorGroup
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath, problem_error
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.precision import get_precision
from titanrun.models.shared.config import AttentionConfig, unwrap_auto
from titanrun.models.shared.spec.family import load_family_module
from titanrun.recipe.recipe import Recipe

log = logging.getLogger(__name__)

CACHE_FOLDER = "data"


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
                f"the tokenizer has {tokenizer.vocab_size} entries, but model.vocab_size is {known}"
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
    source = attention.documents if isinstance(attention, AttentionConfig) else None
    return get_document_id_fn(source, eos_id=None if tokenizer is None else tokenizer.eos_id)


@dataclass(frozen=True, slots=True)
class DataParallelRank:
    """Data-parallel rank and size."""

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
    )
    assert training.global_batch_size != "auto"
    with nest_problems(path):
        return DistributedDataLoader(
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
        return TokenCollator(unwrap_auto(recipe.model.vocab_size))
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    build = load_family_module(type(recipe.model), "collator").build_family_collator
    collator: Collator = build(recipe.model, device=device, dtype=precision.compute_dtype)
    return collator


def enable_pin_memory(
    collator: Collator, config: DataLoaderConfig, device: torch.device
) -> Collator:
    """Return the collator with pinned memory if the recipe enables it."""
    if not config.pin_memory or not isinstance(collator, TokenCollator):
        return collator
    if not is_accelerator(device):
        log.warning("dataloader.pin_memory has no effect: the run is on the CPU")
        return collator
    return replace(collator, pin_memory=True)


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
    assert config.dataset is not None and config.dataset != "auto" and config.seq_len != "auto"
    sets: list[tuple[str, DataPath, DatasetConfig]] = [
        ("validation/loss", ("validation", "dataset"), config.dataset)
    ]
    for number, held_out in enumerate(config.further):
        sets.append(
            (
                f"validation/{held_out.id}/loss",
                ("validation", "further", number, "dataset"),
                held_out.dataset,
            )
        )
    found = {}
    for metric, path, dataset in sets:
        rows = build_dataset(
            dataset, path, recipe, tokenizer=tokenizer, seq_len=config.seq_len, run_dir=run_dir
        )
        if len(rows) == 0:
            raise problem_error(
                "data",
                "the held-out data has no sequences",
                path=path,
                hint="use more data or a smaller validation.seq_len",
            )
        found[metric] = Validator(
            config,
            dataset=rows,
            collator=collator,
            dp_rank=data_parallel_rank.dp_rank,
            dp_size=data_parallel_rank.dp_size,
            recipe_path=path,
        )
    return ValidatorGroup(found)


def build_dataset(
    config: DatasetConfig,
    path: DataPath,
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None,
    seq_len: int,
    run_dir: Path,
) -> IndexedDataset:
    """Build one dataset.

    Raises:
        ProblemsFound: the dataset contains ids for which the model has no embedding.
    """
    with nest_problems(path):
        rows: IndexedDataset = config.load_builder()(
            config,
            tokenizer=tokenizer,
            sample_length=seq_len + 1,
            cache_folder=get_cache_folder(recipe, run_dir),
        )
        known = unwrap_auto(recipe.model.vocab_size)
        if known is not None and rows.max_token_id >= known:
            message = (
                f"the data contains token id {rows.max_token_id}, but model.vocab_size is {known}"
            )
            raise problem_error(
                "data",
                message,
                hint=f"set model.vocab_size to {rows.max_token_id + 1} or more, or tokenize again",
            )
    return rows


def get_cache_folder(recipe: Recipe, run_dir: Path) -> Path:
    """Return the folder of tokenized data."""
    shared = recipe.training.data_cache
    assert shared != "auto"
    return run_dir / CACHE_FOLDER if shared is None else Path(shared)
