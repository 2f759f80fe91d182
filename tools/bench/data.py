"""What reading data costs, in CPU seconds.

Tokenising beside the tokenizers library alone, and a batch from the cache.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

SEQ_LEN, ROWS = 2048, 8
TOKENS_A_SECOND = 60_000
BATCHES = 400


def data_report(runs: int) -> None:
    """Print each figure beside its target."""
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    source = TinyTokenizerConfig().folder / "train.jsonl"
    texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        config = TextDatasetConfig(path=str(source))
        library = min(
            cpu_seconds(partial(tokenizer.encode_batch, texts, add_bos=False, add_eos=False))
            for _ in range(runs)
        )
        # the first time reads modules in
        ours = [
            cpu_seconds(partial(tokenise, config, tokenizer, Path(folder) / str(number)))
            for number in range(runs + 1)
        ][1:]
        tell(
            "speed of tokenising, reading and writing included, beside the library alone",
            library / min(ours),
            "at least 0.8",
        )
        rows = tokenise(config, tokenizer, Path(folder) / "0")
        for processes in (0, 2):
            deal(rows, processes)


def deal(rows: IndexedDataset, processes: int) -> None:
    """Print what the rank spends on batches that it reads itself, or that processes read for it."""
    reading = DataLoaderConfig(num_workers=processes, persistent_workers=True)
    loader = DistributedDataLoader(
        rows, seed=0, shuffle=True, repeat=True, global_batch_size=ROWS, config=reading
    )
    spent = [cpu_seconds(loader.next_samples) for _ in range(BATCHES)]
    loader.close()
    share = statistics.mean(spent) / (ROWS * SEQ_LEN / TOKENS_A_SECOND)
    tell(f"share of a step at 60k tokens/s, {processes} processes", share, "at most 0.005")
    slow = 1000 * sorted(spent)[BATCHES * 99 // 100]
    tell(
        f"99th percentile of a batch of {ROWS} x {SEQ_LEN}, {processes} processes, ms",
        slow,
        "at most 1",
    )


def tokenise(config: TextDatasetConfig, tokenizer: Tokenizer, cache: Path) -> IndexedDataset:
    """Build the rows of a dataset, tokenised unless the folder has them."""
    return build_text_dataset(
        config, tokenizer=tokenizer, sample_length=SEQ_LEN + 1, cache_folder=cache
    )


def tell(what: str, value: float, target: str) -> None:
    """One figure and its target."""
    print(f"{what:<80} {value:8.5f}  target: {target}")


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds that this process spends on it, in all threads."""
    before = time.process_time()
    work()
    return time.process_time() - before
