"""Files of a stream, and the lanes that read them.

A lane is a logical shard of a stream. Which records a lane reads depends on the files, the seed and
the number of lanes, never on the ranks and processes that run it.
"""

import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.sample_order import shuffle_order
from titanrun.config.json_text import parse_json

PLAN_VERSION = 1
PLAN_FILES = "plan-*.json.gz"
"""Pattern of the names of plans in run directories and checkpoints."""
WINDOW_KEY = 2
"""First part of the key of the order of a window: no order of an epoch has a key as long."""
MAY_BE_EMPTY = (".jsonl", ".json", ".txt")
LARGE_FILE_FACTOR = 2
"""Multiple of the mean size above which a file is read by all lanes."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """File of a stream as it was when the stream was opened.

    `location` is where to read it. `name`, below the folder that all files share, `size` in bytes
    and `version`, which changes with the content, identify it: a copied folder is the same data.
    """

    name: str
    size: int
    version: str
    location: str


def leave_out_empty_files(files: Sequence[PlanFile]) -> list[PlanFile]:
    """Return the files that hold anything, or all if none does.

    A lane whose only file is empty would have nothing to read. An empty file of another format is
    damaged, and is told when it is read.
    """
    found = [
        file
        for file in files
        if file.size or PurePosixPath(file.name).suffix.lower() not in MAY_BE_EMPTY
    ]
    return found or list(files)


@dataclass(frozen=True)
class StreamPlan:
    """Files of a stream, in the order in which an epoch without shuffling reads them."""

    files: tuple[PlanFile, ...]

    @cached_property
    def digest(self) -> str:
        """Hash of the names, sizes and versions of all files."""
        listed = [[file.name, file.size, file.version] for file in self.files]
        return hashlib.sha256(json.dumps([PLAN_VERSION, listed]).encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """Name of the file that holds the plan."""
        return get_plan_name(self.digest)

    def to_bytes(self) -> bytes:
        """Return the plan as compressed JSON, the same bytes each time."""
        content = {"version": PLAN_VERSION, "files": [astuple(file) for file in self.files]}
        return gzip.compress(json.dumps(content).encode(), mtime=0)

    @classmethod
    def from_bytes(cls, content: bytes) -> "StreamPlan":
        """Return the plan that `to_bytes` wrote."""
        listed = parse_json(gzip.decompress(content))["files"]
        return cls(tuple(PlanFile(*entry) for entry in listed))


def get_plan_name(digest: str) -> str:
    """Return the name of the file that holds a plan."""
    return f"plan-{digest[:16]}.json.gz"


@dataclass(frozen=True, slots=True)
class LaneFiles:
    """Files that a lane reads in one epoch, as indices into the plan.

    It reads all of the `whole` files, then its share of the windows of the `striped` ones.
    """

    whole: tuple[int, ...]
    striped: tuple[int, ...]


def assign_files(
    sizes: Sequence[int], *, lane: int, num_lanes: int, epoch: int, seed: int | None
) -> LaneFiles:
    """Return the files of a lane in an epoch, in given order without a seed.

    Each file is whole in one lane, or striped over all. Striped are files of more than twice the
    mean size, and what remains when the others are divided evenly. The i-th whole file belongs to
    lane i modulo the number of lanes, as `datasets.distributed.split_dataset_by_node` assigns them.
    """
    order = shuffle_order(len(sizes), seed=seed, epoch=epoch)[:].tolist()
    if num_lanes == 1:
        # the order of an index, whatever the sizes
        return LaneFiles(tuple(order), ())
    limit = LARGE_FILE_FACTOR * sum(sizes) / max(1, len(sizes))
    small = [number for number in order if sizes[number] <= limit]
    whole = small[: len(small) // num_lanes * num_lanes]
    kept = set(whole)
    return LaneFiles(
        tuple(whole[lane::num_lanes]), tuple(number for number in order if number not in kept)
    )


def find_window_lane(num_before: int, place: int, num_lanes: int) -> int:
    """Return the lane of the window with index `place` in a striped file.

    `num_before` windows of other striped files are dealt before, modulo the number of lanes: lanes
    take turns across files, so that their numbers of windows differ by one at most.
    """
    return (num_before + place) % num_lanes


def order_window(
    count: int, *, seed: int | None, source: int, epoch: int, lane: int, window: int
) -> NDArray[np.integer]:
    """Return the order of the `count` records of a window, the given one without a seed."""
    if seed is None:
        return np.arange(count)
    sequence = np.random.SeedSequence(seed, spawn_key=(WINDOW_KEY, source, epoch, lane, window))
    # sorted random numbers, as in `shuffle_order`
    return np.argsort(np.random.PCG64(sequence).random_raw(count), kind="stable")


def find_lanes(rank: int, num_ranks: int, num_lanes: int) -> range:
    """Return the lanes that have samples in the share of a rank.

    A lane that several ranks run has samples in the share of each.
    """
    return range(rank * num_lanes // num_ranks, ((rank + 1) * num_lanes - 1) // num_ranks + 1)
