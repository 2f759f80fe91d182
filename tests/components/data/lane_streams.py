"""Streams of small files, and loaders of all their ranks."""

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_builder import (
    LoaderPlace,
    StreamSettings,
    build_lane_loader,
    plan_streams,
)
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import DataPath

MARK = re.compile(r"<(\d+)>")


def write_numbered(
    folder: Path, counts: Sequence[int], *, suffix: str = ".jsonl.gz", first: int = 0
) -> int:
    """Write files with a given number of documents, each with its number, and return the next."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(len(counts))
    for index, count in enumerate(counts):
        lines = [
            json.dumps({"text": f"<{first + number}>" + "x" * int(generator.integers(3, 50))})
            for number in range(count)
        ]
        first += count
        content = "".join(f"{line}\n" for line in lines).encode()
        path = folder / f"part-{index:03}{suffix}"
        path.write_bytes(gzip.compress(content, mtime=0) if suffix.endswith(".gz") else content)
    return first


class Ranks:
    """The loaders of all data-parallel ranks of a run."""

    def __init__(
        self,
        config: DatasetConfig,
        tokenizer: Tokenizer,
        dp_size: int = 1,
        *,
        lanes: int = 4,
        batch: int = 8,
        length: int = 65,
        seed: int = 0,
        num_workers: int = 0,
        prefetch: int | None = None,
        folder: Path | None = None,
        holdout: Holdout | None = None,
        retry_timeout: float = 900,
    ) -> None:
        def build_indexed(source: DatasetConfig, path: DataPath) -> IndexedDataset:
            assert folder is not None
            rows: IndexedDataset = source.load_builder()(
                source, tokenizer=tokenizer, sample_length=length, cache_folder=folder / "cache"
            )
            return rows

        self.loaders: list[LaneLoader] = [
            build_lane_loader(
                config,
                plan_streams(config, RetryPolicy(retry_timeout)),
                StreamSettings(
                    lanes=lanes,
                    global_batch_size=batch,
                    seed=seed,
                    sample_length=length,
                    holdout=holdout,
                ),
                tokenizer=tokenizer,
                place=LoaderPlace(
                    dp_rank=rank,
                    dp_size=dp_size,
                    plan_folder=folder and folder / "plans",
                    dataloader=DataLoaderConfig(
                        num_workers=num_workers,
                        prefetch_factor=prefetch,
                        retry_timeout=f"{retry_timeout:g}s",
                    ),
                ),
                build_indexed=build_indexed,
            )
            for rank in range(dp_size)
        ]

    def next(self) -> NDArray[np.int64]:
        """Return the next global batch."""
        return np.concatenate([loader.next_samples() for loader in self.loaders])

    def batches(self, count: int) -> list[NDArray[np.int64]]:
        """Return the next global batches."""
        return [self.next() for _ in range(count)]

    def rest(self) -> list[NDArray[np.int64]]:
        """Return all global batches to the end of the data."""
        found = []
        while True:
            # each looks ahead, as separate processes do before they agree
            have_next = [loader.has_next() for loader in self.loaders]
            if not any(have_next):
                return found
            for loader in self.loaders:
                loader._has_next = True
            found.append(self.next())

    def state(self) -> dict[str, Any]:
        """Return the state that the ranks would save together, through JSON."""
        states = [loader.state_dict() for loader in self.loaders]
        for loader, state in zip(self.loaders, states, strict=True):
            for cursors, mine in zip(states[0]["cursors"], state["cursors"], strict=True):
                for lane in loader._lanes:
                    cursors[lane] = mine[lane]
        return json.loads(json.dumps(states[0]))

    def load(self, state: dict[str, Any], **options: bool) -> None:
        """Continue each rank after a state."""
        for loader in self.loaders:
            loader.load_state_dict(state, **options)

    def close(self) -> None:
        """Stop all loaders."""
        for loader in self.loaders:
            loader.close()


def same(some: Iterable[NDArray[Any]], others: Iterable[NDArray[Any]]) -> bool:
    """Return whether all batches are equal bit by bit."""
    return all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def lane_texts(batches: Sequence[NDArray[np.int64]], tokenizer: Tokenizer, lanes: int) -> list[str]:
    """Return the text of each lane, from the labels and inputs that are not padding."""
    texts = []
    for lane in range(lanes):
        ids: list[int] = []
        for batch in batches:
            share = len(batch) // lanes
            for row in batch[lane * share : (lane + 1) * share]:
                kept = row if row.ndim == 1 else row[0][row[0] > 0]
                ids += kept.tolist()
        texts.append(tokenizer.decode(ids))
    return texts


def numbers_in(text: str) -> list[int]:
    """Return the numbers of the documents that begin in a text."""
    return [int(number) for number in MARK.findall(text)]
