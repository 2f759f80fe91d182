"""Builder of the data loader of streams, and of mixtures with streams."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.components.data.config import (
    DatasetConfig,
    DocumentsConfig,
    MixtureDatasetConfig,
)
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.components.data.lane_mixture import (
    IndexedLanes,
    build_mixture_pattern,
    describe_pattern,
)
from titanrun.components.data.lane_plan import StreamPlan, find_lanes
from titanrun.components.data.lane_processes import LaneProcesses
from titanrun.components.data.lane_runner import (
    LaneJob,
    LaneRunner,
    LocalLaneRunner,
    StreamSource,
    load_encoders,
)
from titanrun.components.data.lane_state import StreamIdentity
from titanrun.components.data.sample_order import view_first_epoch
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_sources import SourceFiles, plan_stream
from titanrun.components.data.window_encoders import WindowEncoder, load_encoder
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath
from titanrun.distributed.object_collectives import RankGroup

BuildIndexed = Callable[[DatasetConfig, DataPath], IndexedDataset]
"""Function that builds the indexed dataset of a mixture's source at a path."""


@dataclass(frozen=True, slots=True)
class StreamParts:
    """One dataset with its number and path, below the dataset of the run."""

    config: Any
    number: int = 0
    path: DataPath = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What the sequences of a run depend on beside its dataset."""

    lanes: int
    global_batch_size: int
    seed: int
    sample_length: int
    holdout: Holdout | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderPlace:
    """Rank that a loader is for, its processes, and the folder in which plans are kept."""

    dp_rank: int = 0
    dp_size: int = 1
    ranks: RankGroup = field(default_factory=RankGroup)
    plan_folder: Path | None = None
    config_path: DataPath = ()
    dataloader: DataLoaderConfig = field(default_factory=DataLoaderConfig)


def list_sources(config: DatasetConfig) -> list[StreamParts]:
    """Return the sources of a mixture, or the dataset itself."""
    if not isinstance(config, MixtureDatasetConfig):
        return [StreamParts(config)]
    return [
        StreamParts(source.dataset, number, ("sources", number, "dataset"))
        for number, source in enumerate(config.sources)
    ]


def plan_streams(config: DatasetConfig, retries: RetryPolicy) -> dict[int, StreamPlan]:
    """Return the files of each stream of a dataset, by the number of the source.

    Requests to remote files that fail are repeated for as long as `retries` says.

    Raises:
        ProblemsFound: A data problem with a path relative to the config.
    """
    plans = {}
    for source in list_sources(config):
        if source.config.is_streamed:
            with nest_problems(source.path):
                plans[source.number] = plan_stream(source.config, retries)
    return plans


def build_lane_loader(
    config: DatasetConfig,
    plans: Mapping[int, StreamPlan],
    settings: StreamSettings,
    *,
    tokenizer: Tokenizer,
    place: LoaderPlace,
    build_indexed: BuildIndexed,
) -> LaneLoader:
    """Build the loader of a rank.

    Raises:
        ProblemsFound: A data problem with a path relative to the config.
    """
    files = SourceFiles(RetryPolicy(place.dataloader.retry_timeout_seconds))
    job = build_lane_job(config, plans, settings, files)
    indexed = open_indexed_lanes(config, job, build_indexed)
    encoders = load_encoders(job, tokenizer)
    described = [
        tokenizer.fingerprint,
        [serialize_stream_settings(source, tokenizer, settings.holdout) for source in job.sources],
        describe_pattern(job.pattern),
        [one.dataset.fingerprint for one in indexed.values()],
    ]
    identity = StreamIdentity(job, described, place.plan_folder)
    if place.ranks.rank == 0:
        identity.save_plans()
    lanes = find_lanes(place.dp_rank, place.dp_size, settings.lanes)
    return LaneLoader(
        job,
        build_lane_runner(job, lanes, tokenizer, place.dataloader),
        identity,
        num_channels=count_channels(job, encoders, indexed),
        indexed=indexed,
        dp_rank=place.dp_rank,
        dp_size=place.dp_size,
        ranks=place.ranks,
        wait_seconds=place.dataloader.retry_timeout_seconds,
        config_path=place.config_path,
    )


def serialize_stream_settings(
    source: StreamSource, tokenizer: Tokenizer, holdout: Holdout | None
) -> str:
    """Return what the sequences of a stream depend on beside its files.

    Not whether a record that cannot be read ends the run: those before it are the same, so that a
    run that it has ended goes on without it.
    """
    config = source.config
    if isinstance(config, DocumentsConfig):
        config = type(config).model_validate({**dict(config), "bad_records": "refuse"})
    return load_encoder(config, tokenizer, holdout).settings


def build_lane_job(
    config: DatasetConfig,
    plans: Mapping[int, StreamPlan],
    settings: StreamSettings,
    files: SourceFiles,
) -> LaneJob:
    """Build what the sequences of all lanes depend on."""
    return LaneJob(
        sources=tuple(
            StreamSource(one.config, plans[one.number], files, one.number, one.path)
            for one in list_sources(config)
            if one.config.is_streamed
        ),
        num_lanes=settings.lanes,
        rows_per_step=settings.global_batch_size // settings.lanes,
        seed=settings.seed if config.shuffle else None,
        repeats=config.repeat,
        sample_length=settings.sample_length,
        holdout=settings.holdout,
        counts=files.retries.counts,
        pattern=build_mixture_pattern(config, settings.lanes)
        if isinstance(config, MixtureDatasetConfig)
        else None,
    )


def count_channels(
    job: LaneJob, encoders: Sequence[WindowEncoder], indexed: Mapping[int, IndexedLanes]
) -> int:
    """Return the number of channels of all sequences: the most that one of the sources has."""
    found = [4 if encoder.has_weights else 3 for encoder in encoders]
    if job.repeats and all(encoder.packing == "windows" for encoder in encoders):
        found = [1]
    for one in indexed.values():
        sequence = one.dataset[0]
        found.append(len(sequence) if sequence.ndim == 2 else 1)
    return max(found)


def build_lane_runner(
    job: LaneJob, lanes: range, tokenizer: Tokenizer, config: DataLoaderConfig
) -> LaneRunner:
    """Build the reader of the lanes of a rank: processes, or this process itself."""
    if config.num_workers in (0, "auto"):
        return LocalLaneRunner(job, lanes, tokenizer)
    assert config.num_workers != "auto"
    return LaneProcesses(
        job,
        lanes,
        tokenizer,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
    )


def open_indexed_lanes(
    config: DatasetConfig, job: LaneJob, build_indexed: BuildIndexed
) -> dict[int, IndexedLanes]:
    """Open the indexed sources of a mixture, by their numbers."""
    if not isinstance(config, MixtureDatasetConfig):
        return {}
    found = {}
    for part, source in zip(list_sources(config), config.sources, strict=True):
        if not part.config.is_streamed:
            rows = view_first_epoch(build_indexed(part.config, part.path))
            size = min(len(rows), source.max_rows or len(rows))
            found[part.number] = IndexedLanes(
                rows, size=size, source=part.number, num_lanes=job.num_lanes, seed=job.seed
            )
    return found
