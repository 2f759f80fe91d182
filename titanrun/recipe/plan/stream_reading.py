"""Work of a data-parallel rank that tokenizes a stream while it trains."""

from math import ceil
from typing import Any

from titanrun.components.data.stream_config import MAX_WINDOW_BYTES
from titanrun.recipe.plan.devices import GIB
from titanrun.recipe.plan.plan_layout import PlanLayout

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
    # of a lane that several ranks read, each tokenizes all
    sequences = held * int(training.global_batch_size) // lanes
    speed = sequences * training.seq_len / seconds_per_step
    processes = max(1, ceil(speed / TOKENS_PER_PROCESS))
    return {
        "lanes": lanes,
        "lanes_per_rank": held,
        "memory": held * WINDOWS_PER_LANE * MAX_WINDOW_BYTES,
        "tokens_per_second": speed,
        "processes": processes if processes <= held else None,
    }


def format_stream_reading(layout: PlanLayout, data: dict[str, Any]) -> list[str]:
    """Return lines about a stream. Empty without one."""
    stream = data["stream"]
    if stream is None:
        return []
    size = MAX_WINDOW_BYTES // 2**20
    return [
        "",
        "data tokenized by each data-parallel rank while it trains",
        f"  lanes    {stream['lanes_per_rank']} of {stream['lanes']}",
        f"  memory   {stream['memory'] / GIB:,.2f} GiB at most on the host: {WINDOWS_PER_LANE} "
        f"windows of {size} MiB for each lane",
        f"  speed    {stream['tokens_per_second']:,.0f} tokens/s in the fastest steps",
        f"  needs    {format_processes(layout, stream['processes'])}",
    ]


def format_processes(layout: PlanLayout, processes: int | None) -> str:
    """Format how many processes keep up with the rank."""
    each = f"{TOKENS_PER_PROCESS:,} tokens/s of each process"
    if processes is None:
        return f"more processes than lanes, at {each}: streaming: false reads an index instead"
    used = layout.run.training.dataloader.num_workers
    return f"training.dataloader.num_workers: {processes} (here {used}), at {each}"
