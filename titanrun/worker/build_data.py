"""The data of a run: tokenizer, training rows dealt to global batches, held-out rows, and what makes batches of them."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from titanrun.components.data.batch import BatchMaker, TokenBatches
from titanrun.components.data.config import DataLoaderConfig, DatasetConfig
from titanrun.components.data.documents import Marking, marking
from titanrun.components.data.loader import RowLoader
from titanrun.components.data.rows import Rows
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.components.validation.validator import Validator, Validators
from titanrun.config.placed import placed
from titanrun.config.problems import DataPath, fail
from titanrun.distributed.device import is_accelerator
from titanrun.distributed.precision import precision_named
from titanrun.models.shared.config import AttentionConfig, decided
from titanrun.models.shared.family import family_module
from titanrun.recipe.recipe import Recipe

log = logging.getLogger(__name__)

CACHE_FOLDER = "data"


def build_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The tokenizer, if the recipe has one. Raises ProblemsFound where it has more entries than the model."""
    config = recipe.tokenizer
    if config is None:
        return None
    assert config != "auto"
    with placed(("tokenizer",)):
        tokenizer: Tokenizer = config.builder()(config)
        known = decided(recipe.model.vocab_size)
        if tokenizer.vocab_size > known:
            message = (
                f"the tokenizer has {tokenizer.vocab_size} entries, the model's vocabulary {known}"
            )
            raise fail(
                "conflict", message, help=f"set model.vocab_size to {tokenizer.vocab_size} or more"
            )
    return tokenizer


def build_marking(recipe: Recipe, tokenizer: Tokenizer | None) -> Marking:
    """What numbers the documents of a batch, where attention must not cross them. Raises ProblemsFound where nothing tells them."""
    attention = getattr(recipe.model, "attention", None)
    source = attention.documents if isinstance(attention, AttentionConfig) else None
    return marking(source, eos_id=None if tokenizer is None else tokenizer.eos_id)


@dataclass(frozen=True, slots=True)
class Share:
    """Which of so many equal shares of each batch this rank reads."""

    index: int = 0
    count: int = 1


def build_loader(
    recipe: Recipe, tokenizer: Tokenizer | None, run_dir: Path, share: Share
) -> RowLoader:
    """Training rows, dealt to global batches and this rank."""
    training, path = recipe.training, ("training", "dataset")
    rows = build_rows(
        training.dataset,
        path,
        recipe,
        tokenizer=tokenizer,
        seq_len=training.seq_len,
        run_dir=run_dir,
    )
    assert training.global_batch_size != "auto"
    with placed(path):
        return RowLoader(
            rows,
            seed=recipe.debug.seed,
            shuffle=training.dataset.shuffle,
            repeat=training.dataset.repeat,
            global_batch_size=training.global_batch_size,
            dp_rank=share.index,
            dp_size=share.count,
            place=path,
            processes=training.dataloader,
        )


def build_batches(recipe: Recipe, device: torch.device) -> BatchMaker:
    """What makes batches of rows: of token ids, or as the family of a model that takes something else says."""
    if recipe.model.takes == "tokens":
        return TokenBatches(decided(recipe.model.vocab_size))
    precision = precision_named(recipe.training.dtype, recipe.training.mixed_precision_param)
    makes = family_module(type(recipe.model), "batches").batch_maker
    maker: BatchMaker = makes(recipe.model, device=device, dtype=precision.compute)
    return maker


def pinning(batches: BatchMaker, config: DataLoaderConfig, device: torch.device) -> BatchMaker:
    """The same maker; what it makes waits in page-locked memory where the recipe asks for that and is copied from there."""
    if not config.pin_memory or not isinstance(batches, TokenBatches):
        return batches
    if not is_accelerator(device):
        log.warning(
            "dataloader.pin_memory has no effect: the run is on the CPU, and batches are where they are needed"
        )
        return batches
    return replace(batches, pins=True)


def build_validator(
    recipe: Recipe, tokenizer: Tokenizer | None, run_dir: Path, share: Share, batches: BatchMaker
) -> Validators | None:
    """What measures the loss on held-out rows, if the recipe wants that."""
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
        rows = build_rows(
            dataset, path, recipe, tokenizer=tokenizer, seq_len=config.seq_len, run_dir=run_dir
        )
        if len(rows) == 0:
            raise fail(
                "data",
                "the held-out data has no rows",
                path=path,
                help="use more data or a smaller validation.seq_len",
            )
        found[metric] = Validator(
            config, rows=rows, batches=batches, dp_rank=share.index, dp_size=share.count, place=path
        )
    return Validators(found)


def build_rows(
    config: DatasetConfig,
    path: DataPath,
    recipe: Recipe,
    *,
    tokenizer: Tokenizer | None,
    seq_len: int,
    run_dir: Path,
) -> Rows:
    """The rows of one dataset. Raises ProblemsFound where they hold ids that the model has no embedding for."""
    with placed(path):
        rows: Rows = config.builder()(
            config,
            tokenizer=tokenizer,
            row_length=seq_len + 1,
            cache_folder=cache_folder(recipe, run_dir),
        )
        known = decided(recipe.model.vocab_size)
        if known is not None and rows.max_token_id >= known:
            message = f"the data holds token id {rows.max_token_id}, the model's vocabulary has {known} entries"
            raise fail(
                "data",
                message,
                help=f"set model.vocab_size to {rows.max_token_id + 1} or more, or tokenise again",
            )
    return rows


def cache_folder(recipe: Recipe, run_dir: Path) -> Path:
    """Where tokenised data is kept."""
    shared = recipe.training.data_cache
    assert shared != "auto"
    return run_dir / CACHE_FOLDER if shared is None else Path(shared)
