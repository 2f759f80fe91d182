"""Builder of the data loader of a run that trains on streams."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.sample_loader import SampleLoader
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath
from titanrun.distributed.object_collectives import RankGroup, new_file_io_group
from titanrun.recipe.recipe import Recipe
from titanrun.worker.build.build_data import (
    CACHE_FOLDER,
    DataParallelRank,
    build_dataset,
    get_holdout,
)
from titanrun.worker.build.epochs_to_steps import get_global_batch_size

if TYPE_CHECKING:
    from titanrun.components.data import stream_builder
    from titanrun.components.data.lane_plan import StreamPlan
else:
    # imported only for streams: it imports the readers of all file formats
    stream_builder = LazyModule("titanrun.components.data.stream_builder")

DATASET_PATH = ("training", "dataset")


def plan_training_streams(recipe: Recipe, ranks: RankGroup) -> "dict[int, StreamPlan]":
    """Return the files of the streams of the training data, listed by the main rank.

    There are none without streams. All ranks must call this.
    """
    if not recipe.training.dataset.is_streamed:
        return {}
    with nest_problems(DATASET_PATH):
        return ranks.broadcast_from_main(
            lambda: stream_builder.plan_streams(
                recipe.training.dataset,
                RetryPolicy(recipe.training.dataloader.retry_timeout_seconds),
            )
        )


def new_stream_group(recipe: Recipe) -> RankGroup:
    """Return the ranks in a group for the state of streams. All ranks must call this.

    Simulated ranks gather nothing: this rank is alone.
    """
    is_real = recipe.comm.mode == "default"
    return new_file_io_group() if recipe.training.dataset.is_streamed and is_real else RankGroup()


def build_stream_loader(
    recipe: Recipe,
    tokenizer: Tokenizer,
    run_dir: Path | None,
    data_parallel_rank: DataParallelRank,
    ranks: RankGroup,
    plans: "dict[int, StreamPlan]",
) -> SampleLoader:
    """Build the loader of this rank's part of the streams.

    Without a run directory, the loader reads in this process and keeps no plans.
    """
    training = recipe.training
    assert isinstance(training.lanes, int), "resolved for a stream"
    with nest_problems(DATASET_PATH):
        return stream_builder.build_lane_loader(
            training.dataset,
            plans,
            stream_builder.StreamSettings(
                lanes=training.lanes,
                global_batch_size=get_global_batch_size(recipe),
                seed=recipe.debug.seed,
                sample_length=training.seq_len + 1,
                holdout=get_holdout(recipe),
            ),
            tokenizer=tokenizer,
            place=stream_builder.LoaderPlace(
                dp_rank=data_parallel_rank.dp_rank,
                dp_size=data_parallel_rank.dp_size,
                ranks=ranks,
                plan_folder=None if run_dir is None else run_dir / CACHE_FOLDER,
                config_path=DATASET_PATH,
                dataloader=DataLoaderConfig() if run_dir is None else training.dataloader,
            ),
            build_indexed=partial(build_indexed_source, recipe, tokenizer, run_dir or Path()),
        )


def build_indexed_source(
    recipe: Recipe, tokenizer: Tokenizer, run_dir: Path, config: DatasetConfig, path: DataPath
) -> IndexedDataset:
    """Build an indexed source of a mixture at a path below the dataset."""
    holdout = get_holdout(recipe)
    # its problems get the path of the dataset from the caller
    return build_dataset(
        config,
        path,
        recipe,
        tokenizer=tokenizer,
        seq_len=recipe.training.seq_len,
        run_dir=run_dir,
        holdout=None if holdout is None else replace(holdout, is_part=True),
    )
