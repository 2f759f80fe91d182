"""Work of a data-parallel rank that tokenizes a stream while it trains, or before."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from titanrun.components.data.config import DatasetConfig, MixtureDatasetConfig
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.spec.mixture_shares import scale_weights
from titanrun.components.data.stream_config import MAX_WINDOW_BYTES, StreamFields
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.plan.devices import GIB
from titanrun.recipe.plan.plan_layout import PlanLayout
from titanrun.report.figures import format_bytes

WINDOWS_PER_LANE = 2
TOKENS_PER_PROCESS = 100_000
"""Tokens per second that one process is expected to make. With 128,000 entries, 240,000 were
measured on one core (benchmarks/README.md); real text has rarer words, and other cores are slower.
"""


def estimate_stream_reading(layout: PlanLayout, seconds_per_step: float) -> dict[str, Any] | None:
    """Return lanes, memory, speed and processes of the fullest rank, None without a stream.

    `processes` is None if no number of processes is enough: each needs a lane.
    """
    training, dp_size = layout.run.training, layout.parallel_dims.dp_size
    if not training.dataset.is_streamed or not isinstance(training.lanes, int):
        return None
    lanes = training.lanes
    held = max(
        ((rank + 1) * lanes - 1) // dp_size - rank * lanes // dp_size + 1 for rank in range(dp_size)
    )
    streams, share = count_streams(training.dataset)
    # of a lane that several ranks read, each tokenizes all
    sequences = held * int(training.global_batch_size) // lanes * share
    speed = sequences * training.seq_len / seconds_per_step
    processes = max(1, ceil(speed / TOKENS_PER_PROCESS))
    return {
        "lanes": lanes,
        "lanes_per_rank": held,
        "streams": streams,
        "files": list_stream_files(training.dataset),
        "share": share,
        "memory": held * streams * WINDOWS_PER_LANE * MAX_WINDOW_BYTES,
        "tokens_per_second": speed,
        "processes": processes if processes <= held else None,
    }


def count_streams(dataset: DatasetConfig) -> tuple[int, float]:
    """Return how many streams a dataset reads, and their share of its sequences."""
    if not isinstance(dataset, MixtureDatasetConfig):
        return int(dataset.is_streamed), float(dataset.is_streamed)
    weights = scale_weights([one.weight for one in dataset.sources])
    streamed = [
        weight
        for one, weight in zip(dataset.sources, weights, strict=True)
        if one.dataset.is_streamed
    ]
    return len(streamed), sum(streamed) / sum(weights)


def list_stream_files(dataset: DatasetConfig) -> list[dict[str, Any]]:
    """Return name, number of files and bytes of each stream.

    Both numbers are None if they are not known here: no server is asked.
    """
    # a stream is both a dataset and its fields
    sources: list[Any] = [dataset]
    if isinstance(dataset, MixtureDatasetConfig):
        sources = [one.dataset for one in dataset.sources]
    return [
        describe_stream_files(source)
        for source in sources
        if isinstance(source, StreamFields) and source.is_streamed
    ]


def describe_stream_files(config: StreamFields) -> dict[str, Any]:
    """Return name, number of files and bytes of one stream."""
    path = getattr(config, "path", None)
    name = path or getattr(config, "repo", None) or getattr(config, "name", "")
    if path is None or config.has_remote_files:
        return {"name": name, "count": None, "bytes": None}
    try:
        sizes = [file.stat().st_size for file in resolve_data_files(path, config.stream_suffixes)]
    # the plan of a run elsewhere
    except (ProblemsFound, OSError):
        return {"name": name, "count": None, "bytes": None}
    return {"name": name, "count": len(sizes), "bytes": sum(sizes)}


def format_stream_files(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line about the files of each stream."""
    for one in files:
        known = (
            "not known here: listed when the run starts"
            if one["count"] is None
            else f"{pluralize(one['count'], 'file')}, {format_bytes(one['bytes'])}"
        )
        yield f"  files    {known}: '{one['name']}'"


def estimate_stream_heads(layout: PlanLayout) -> list[dict[str, Any]]:
    """Return what is read of streams before the first step, for each set that is validated.

    `tokens` fill its sequences, None if it has no end. `read` are those of all documents up to
    there: of a held-out share, most belong to training.
    """
    validation = layout.run.validation
    if not validation.enable:
        return []
    held_out = validation.holdout is not None
    first = layout.run.training.dataset if held_out else validation.dataset
    found = []
    for number, dataset in enumerate([first, *(one.dataset for one in validation.further)]):
        if not isinstance(dataset, DatasetConfig) or not dataset.is_streamed:
            continue
        name = validation.further[number - 1].id if number else "validation"
        tokens = None
        if validation.steps is not None:
            rows = validation.steps * int(validation.local_batch_size)
            tokens = rows * (int(validation.seq_len) + 1) * count_streams(dataset)[0]
        share = validation.holdout if held_out and not number else None
        read = tokens if tokens is None or share is None else round(tokens / share)
        found.append({"name": name, "tokens": tokens, "holdout": share, "read": read})
    return found


def format_stream_heads(data: dict[str, Any]) -> list[str]:
    """Return lines about what is read of streams before the first step. Empty if nothing is."""
    heads = data["stream_heads"]
    if not heads:
        return []
    width = max(len(head["name"]) for head in heads)
    return [
        "",
        "tokenized before the first run with this data, for validation",
        *(f"  {head['name']:<{width}}  {format_stream_head(head)}" for head in heads),
    ]


def format_stream_head(head: dict[str, Any]) -> str:
    """Format how much is read of one stream."""
    if head["tokens"] is None:
        return "the whole split: validation.steps is null"
    kept = f"the first {head['tokens']:,} tokens"
    if head["holdout"] is None:
        return kept
    return f"{kept} of documents that are held out: about {head['read']:,} tokens are read"


def format_stream_reading(layout: PlanLayout, data: dict[str, Any]) -> list[str]:
    """Return lines about a stream. Empty without one."""
    stream = data["stream"]
    if stream is None:
        return []
    size, streams = MAX_WINDOW_BYTES // 2**20, stream["streams"]
    of_each = "for each lane" + f" of each of {streams} streams" * (streams > 1)
    mixed = f", {stream['share']:.0%} of the sequences" * (stream["share"] < 1)
    return [
        "",
        "data tokenized by each data-parallel rank while it trains",
        *format_stream_files(stream["files"]),
        f"  lanes    {stream['lanes_per_rank']} of {stream['lanes']}{mixed}",
        f"  memory   {stream['memory'] / GIB:,.2f} GiB at most on the host: {WINDOWS_PER_LANE} "
        f"windows of {size} MiB {of_each}",
        f"  speed    {stream['tokens_per_second']:,.0f} tokens/s in the fastest steps of "
        f"{data['device']}; --device names another",
        f"  needs    {format_processes(layout, stream)}",
    ]


def format_processes(layout: PlanLayout, stream: dict[str, Any]) -> str:
    """Format how many processes keep up with the rank."""
    processes, lanes = stream["processes"], stream["lanes_per_rank"]
    each = f"if each process tokenizes {TOKENS_PER_PROCESS:,} tokens/s"
    if processes is None:
        return (
            f"more than {pluralize(lanes, 'process', 'processes')}, and each needs a lane, {each}: "
            "raise training.lanes, or set streaming: false to tokenize before the run"
        )
    used = layout.run.training.dataloader.num_workers
    return f"training.dataloader.num_workers: {processes} (here {used}), {each}"
