"""Rules about data that is tokenized while the run trains."""

from collections.abc import Iterator
from importlib import import_module

from titanrun.components.data.config import DatasetConfig, DocumentsConfig, MixtureDatasetConfig
from titanrun.components.data.spec.mixture_shares import (
    SMALL_WEIGHT_HINT,
    describe_too_small_weight,
    find_too_small_weights,
)
from titanrun.components.data.stream_config import StreamFields
from titanrun.config.base import iter_nested_configs
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import DataPath, ProblemsFound
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rules.data import matches_existing_path
from titanrun.recipe.rules.no_effect import build_no_effect_violation, build_violation
from titanrun.recipe.rules.registry import RuleViolation, rank_rule, rule
from titanrun.recipe.rundir.package_versions import is_installed

DATASET: DataPath = ("training", "dataset")
LANES: DataPath = ("training", "lanes")
# a batch of any size is searched for a divisor
MAX_SUGGESTED_LANES = 4096
READER_MODULE = "titanrun.components.data.lane_check"
READER_PACKAGES = ("numpy", "pyarrow")


@rule("stream-has-no-first-documents")
def stream_has_no_first_documents(run: Recipe) -> Iterator[RuleViolation]:
    """Refuse max_documents for a stream.

    Lanes read a stream at many places at once, so that no documents are the first ones. Set
    streaming: false to tokenize that many before the first step, or remove max_documents.
    """
    for place, dataset in iter_streams(run):
        if isinstance(dataset, DocumentsConfig) and dataset.max_documents is not None:
            yield RuleViolation(
                "a stream has no first documents, but max_documents is set",
                ((*place, "max_documents"), (*place, "streaming")),
                hint="set streaming: false, or remove max_documents",
            )


@rule("lanes-divide-batch")
def lanes_divide_batch(run: Recipe) -> Iterator[RuleViolation]:
    """Require training.lanes to divide global_batch_size.

    Each lane of a stream gives as many sequences as every other to each global batch.
    """
    if not run.training.dataset.is_streamed:
        return
    lanes, batch = run.training.lanes, int(run.training.global_batch_size)
    if lanes is None:
        yield RuleViolation(
            "training.lanes is null, but the data is a stream",
            (LANES, DATASET),
            hint="set training.lanes: auto",
        )
    elif batch % int(lanes):
        candidates = range(1, min(int(lanes), MAX_SUGGESTED_LANES + 1))
        near = max(count for count in candidates if batch % count == 0)
        yield RuleViolation(
            f"{lanes} lanes cannot give equal shares of a global batch of "
            f"{pluralize(batch, 'sequence')}",
            (LANES, ("training", "global_batch_size")),
            hint=f"set training.lanes: {near}, or another divisor of {batch}",
        )


@rank_rule("lanes-cover-ranks")
def lanes_cover_ranks(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Warn if several data-parallel ranks read the same lane of a stream.

    Each of them tokenizes all documents of the lane, and drops the sequences of the others. Batches
    are the same, but take more work. Set training.lanes to a multiple of the data-parallel ranks.
    """
    degrees, lanes = resolve_parallel_dims(run.parallelism, ranks), run.training.lanes
    if not run.training.dataset.is_streamed or degrees is None or not isinstance(lanes, int):
        return
    readers, batch = degrees.dp_size, int(run.training.global_batch_size)
    if lanes % readers == 0 or batch % readers:
        return
    each = (
        f"each lane is read by {readers // lanes} ranks, which tokenize"
        if readers % lanes == 0
        else f"{pluralize(readers, 'rank')} share {pluralize(lanes, 'lane')}, so that several "
        "tokenize"
    )
    yield RuleViolation(
        f"{each} the same documents",
        (LANES, ("parallelism", "data_parallel_shard_degree")),
        hint=f"set training.lanes: {readers}",
        severity="warning",
    )


@rule("stream-fills-lanes", level="environment")
def stream_fills_lanes(run: Recipe) -> Iterator[RuleViolation]:
    """Require a window of records for each lane of a stream.

    A lane reads windows of consecutive records (`window`), and one without any has nothing to train
    on. Set streaming: false for data this small, or fewer training.lanes. Records of small local
    files are counted here; others when they are read.
    """
    lanes = run.training.lanes
    if not isinstance(lanes, int) or not all(map(is_installed, READER_PACKAGES)):
        return
    for place, dataset in iter_streams(run):
        path = getattr(dataset, "path", None)
        if path is None or dataset.has_remote_files or not matches_existing_path(path):
            continue
        try:
            # the reader is on the execution side
            import_module(READER_MODULE).check_last_lane(dataset, path, lanes)
        except ProblemsFound as error:
            # other rules and the run name what is wrong with a file
            for problem in (one for one in error.problems if not one.path):
                yield RuleViolation(
                    problem.message, (place, LANES), hint=problem.hint, code="data", section=place
                )


@rule("stream-length")
def stream_length(run: Recipe) -> Iterator[RuleViolation]:
    """Refuse epochs and rows of a stream, and of a mixture with one.

    Nobody knows how many sequences a stream has before it has been read. Set training.steps or
    training.tokens.
    """
    dataset = run.training.dataset
    if not dataset.is_streamed:
        return
    if run.training.epochs is not None:
        yield RuleViolation(
            "the length of an epoch is not known for a stream",
            (("training", "epochs"), DATASET),
            hint="set training.steps or training.tokens",
        )
    for path, mixture in iter_nested_configs(dataset, DATASET):
        if not isinstance(mixture, MixtureDatasetConfig) or not mixture.is_streamed:
            continue
        if not mixture.repeat:
            yield RuleViolation(
                "a mixture with a stream has no end, but repeat is false",
                ((*path, "repeat"), path),
                hint="remove repeat, and set training.steps or training.tokens",
            )
        for number, source in enumerate(mixture.sources):
            place = (*path, "sources", number)
            names = ["epochs", "max_rows"] if source.dataset.is_streamed else ["epochs"]
            for name in names:
                if getattr(source, name) is not None:
                    yield RuleViolation(
                        f"{name} of a source has no meaning beside a stream, whose length is not "
                        "known",
                        ((*place, name), place),
                        hint="remove it; weight is the share of the source",
                    )


@rule("stream-in-one-mixture")
def stream_in_one_mixture(run: Recipe) -> Iterator[RuleViolation]:
    """Refuse a stream in a mixture within a mixture.

    The sources of one mixture are dealt to the lanes. List the stream in the outer mixture.
    """
    outer = run.training.dataset
    for number, source in enumerate(
        outer.sources if isinstance(outer, MixtureDatasetConfig) else ()
    ):
        if isinstance(source.dataset, MixtureDatasetConfig) and source.dataset.is_streamed:
            yield RuleViolation(
                "a mixture within a mixture cannot hold a stream",
                ((*DATASET, "sources", number, "dataset"),),
                hint="list its sources in the outer mixture",
            )


@rule("stream-mixture-weight")
def stream_mixture_weight(run: Recipe) -> Iterator[RuleViolation]:
    """Refuse a weight of a mixture with a stream that is less than 1/65536.

    The order of the sources of such a mixture repeats after 65,536 sequences of a lane. A source
    without one of them would never be read. Raise the weight, or remove the source.
    """
    for path, mixture in iter_nested_configs(run.training.dataset, DATASET):
        if not isinstance(mixture, MixtureDatasetConfig) or not mixture.is_streamed:
            continue
        weights = [source.weight for source in mixture.sources]
        for number in find_too_small_weights(weights):
            place = (*path, "sources", number)
            yield RuleViolation(
                describe_too_small_weight(weights[number]),
                ((*place, "weight"), place),
                hint=SMALL_WEIGHT_HINT,
            )


@rule("stream-refuses-late")
def stream_refuses_late(run: Recipe) -> Iterator[RuleViolation]:
    """Warn about too_long: refuse in a stream.

    A stream meets its documents while it trains: one that is too long would end the run in the
    middle. Set too_long to another value.
    """
    for place, dataset in iter_streams(run):
        if getattr(dataset, "too_long", None) == "refuse" and dataset.packs_windows:
            yield RuleViolation(
                "too_long: refuse ends a stream at the first long document, in the middle of the "
                "run",
                ((*place, "too_long"), (*place, "streaming")),
                hint="set too_long: drop",
                severity="warning",
            )


@rule("bad-files-need-a-limit")
def bad_files_need_a_limit(run: Recipe) -> Iterator[RuleViolation]:
    """Require max_bad_files with bad_files: skip.

    Without it no damaged file is skipped. Set how many may be.
    """
    for place, dataset in iter_streams(run):
        if dataset.skips_bad_files and dataset.max_bad_files == 0:
            yield RuleViolation(
                "bad_files is skip, but max_bad_files allows none",
                ((*place, "max_bad_files"), (*place, "bad_files")),
                hint="set max_bad_files, for example to 3",
            )


@rank_rule("stream-loader-settings")
def stream_loader_settings(run: Recipe, ranks: int | None) -> Iterator[RuleViolation]:
    """Warn about settings of the data loader that slow a stream down, or have no effect on it.

    With num_workers 0, an accelerator waits while its rank tokenizes. A process runs whole lanes,
    so that there is nothing to do for more processes than a rank has lanes. The processes of a
    stream persist anyway.
    """
    if not run.training.dataset.is_streamed:
        return
    loader, lanes = run.training.dataloader, run.training.lanes
    path: DataPath = ("training", "dataloader", "num_workers")
    count = int(loader.num_workers)
    if count == 0 and run.device == "gpu":
        yield RuleViolation(
            "the gpu waits while its rank tokenizes the stream: num_workers is 0",
            (path, DATASET),
            hint="set training.dataloader.num_workers: auto",
            severity="warning",
        )
    if isinstance(lanes, int):
        degrees = resolve_parallel_dims(run.parallelism, ranks)
        own = lanes if degrees is None else max(1, lanes // degrees.dp_size)
        if count > own:
            yield build_violation(
                f"{pluralize(count, 'process', 'processes')} share {pluralize(own, 'lane')} of a "
                "rank: those without a lane are not started",
                (path, LANES),
                f"set training.dataloader.num_workers: {own}, or training.lanes",
            )
    if loader.persistent_workers:
        yield build_no_effect_violation(
            (*path[:-1], "persistent_workers"),
            DATASET,
            "is a stream, whose processes always persist",
            "remove it",
        )


def iter_streams(run: Recipe) -> Iterator[tuple[DataPath, StreamFields]]:
    """Yield the streams of the training data with their paths."""
    for path, config in iter_nested_configs(run.training.dataset, DATASET):
        if isinstance(config, StreamFields) and config.is_streamed:
            assert isinstance(config, DatasetConfig)
            yield path, config
