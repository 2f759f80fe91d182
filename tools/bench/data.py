"""What reading data costs, in CPU seconds.

Tokenising beside the tokenizers library alone, a batch from the cache, and the checks of its
blocks.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from titanrun.components.data.chunked_sequences import build_token_chunks
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.file_change_guard import UnchangedFile, find_file_state
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.data.token_collator import TokenCollator
from titanrun.components.data.token_file import TokenStream, open_token_memmap, summarize_tokens
from titanrun.components.data.token_file_digests import verify_token_file
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.training.data_source import DataSource

SEQ_LEN, ROWS = 2048, 8
TOKENS_A_SECOND = 60_000
BATCHES = 400
EPOCH_TOKENS, EPOCH_VOCABULARY = 96 * 2**20, 50_000


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
        measure_checks(Path(folder) / "ids.npy", 2 * runs)


def measure_checks(file: Path, epochs: int) -> None:
    """Print what the checks of blocks add to an epoch as a run reads it, up to its batches.

    Epochs with and without the checks alternate, each from a file that is in memory, then each from
    one that the disk is asked for. Of each batch, the fastest of all epochs counts: other programs
    slow down some of any epoch.
    """
    np.save(file, np.random.default_rng(0).integers(0, EPOCH_VOCABULARY, EPOCH_TOKENS, np.uint16))
    state, tokens = find_file_state(file), open_token_memmap(file)
    verified = verify_token_file(file, tokens, state=state, cache_folder=file.parent)
    summary = summarize_tokens(tokens, source=file.name)
    guard = UnchangedFile(file, state=state, digest=summary.digest)

    def open_epoch(stream: TokenStream) -> DataSource:
        rows = build_token_chunks(
            stream, sample_length=SEQ_LEN + 1, summary=summary, source=file.name, file=guard
        )
        loader = DistributedDataLoader(
            rows, seed=0, shuffle=True, repeat=False, global_batch_size=ROWS
        )
        return DataSource(
            dataloader=loader,
            collator=TokenCollator(EPOCH_VOCABULARY),
            local_batch_size=ROWS,
            seq_len=SEQ_LEN,
            tokens_per_step=ROWS * SEQ_LEN,
        )

    for place in ("memory", "the disk"):
        spent: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(epochs):
            for checks in (True, False)[:: 1 if number % 2 else -1]:
                verified.check_again()
                if place == "the disk":
                    drop_from_memory(file)
                spent[checks].append(read_epoch(open_epoch(verified if checks else tokens)))
        bare, checked = (
            sum(min(times) for times in zip(*spent[one], strict=True)) for one in (False, True)
        )
        words = f"{EPOCH_TOKENS / 2**20:.0f} Mi tokens from {place}"
        tell(f"reading an epoch without checks, {words}, s", bare, "none")
        tell(f"what the checks add, {words}, share", checked / bare - 1, "at most 0.02")


def read_epoch(source: DataSource) -> list[float]:
    """Read all batches, and return the CPU seconds of each."""
    spent = []
    while source.has_next():
        began = time.thread_time()
        source.next_input()
        spent.append(time.thread_time() - began)
    return spent


def drop_from_memory(file: Path) -> None:
    """Make the next read of a file come from the disk."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


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
