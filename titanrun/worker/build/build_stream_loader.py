"""Builder of the data loader of a run that trains on streams."""

import fnmatch
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.components.data.config import DatasetConfig, MixtureDatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.mixture_dataset import get_records_name, name_sources
from titanrun.components.data.sample_loader import SampleLoader
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.spec.mixture_shares import scale_weights
from titanrun.components.data.token_writer import write_file_atomically
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.nested_problems import nest_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath
from titanrun.distributed.object_collectives import RankGroup, new_file_io_group
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.run_files import DATA_FOLDER
from titanrun.report.figures import format_bytes
from titanrun.worker.build.build_data import (
    DataParallelRank,
    build_dataset,
    get_holdout,
)
from titanrun.worker.build.epochs_to_steps import get_global_batch_size

if TYPE_CHECKING:
    from titanrun.components.data import lane_plan, stream_builder
    from titanrun.components.data.lane_plan import StreamPlan
else:
    # imported only for streams: it imports the readers of all file formats
    stream_builder = LazyModule("titanrun.components.data.stream_builder")
    lane_plan = LazyModule("titanrun.components.data.lane_plan")

DATASET_PATH = ("training", "dataset")

log = logging.getLogger(__name__)


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


def log_training_streams(recipe: Recipe, plans: "Mapping[int, StreamPlan]") -> None:
    """Log the files of each stream, and the shares of a mixture that has one."""
    if not plans:
        return
    config = recipe.training.dataset
    sources = config.sources if isinstance(config, MixtureDatasetConfig) else ()
    names = name_sources(sources) if sources else [get_records_name(config) or config.name]
    for number, plan in plans.items():
        size = format_bytes(sum(file.size for file in plan.files))
        log.info("stream '%s': %s, %s", names[number], pluralize(len(plan.files), "file"), size)
    weights = scale_weights([source.weight for source in sources])
    for number, weight in enumerate(weights):
        share = 100 * weight / sum(weights)
        log.info("the mixture reads %.3g%% of source %d, '%s'", share, number, names[number])


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
    reading = training.dataloader
    if run_dir is None:
        reading = DataLoaderConfig(num_workers=0, retry_timeout=reading.retry_timeout)
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
                plan_folder=None if run_dir is None else run_dir / DATA_FOLDER,
                config_path=DATASET_PATH,
                dataloader=reading,
            ),
            build_indexed=partial(build_indexed_source, recipe, tokenizer, run_dir or Path()),
        )


def collect_plan_files(plans: "Mapping[int, StreamPlan]") -> dict[str, bytes]:
    """Return the files that checkpoints hold of the plans, by name."""
    return {plan.file_name: plan.to_bytes() for plan in plans.values()}


def keep_saved_plans(run_dir: Path, checkpoint: AnyPath) -> None:
    """Copy the plans of a checkpoint of another run into the run directory.

    They tell which files have changed since it was saved.
    """
    folder = run_dir / DATA_FOLDER
    for name in fnmatch.filter(read_manifest(checkpoint).files, lane_plan.PLAN_FILES):
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_file_atomically(folder / name, (checkpoint / name).read_bytes())


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
