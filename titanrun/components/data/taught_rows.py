"""Predictions of a teacher for the tokens of a dataset, in files.

A folder has the K likeliest ids of each token in the loss, their log-probabilities, and where the
tokens of each sequence end, each with digests. The files of a dataset are those of its sequences,
in their order.

Shapes: K predictions of a token, T tokens in the loss of all sequences.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.prediction_channels import LOGPROB_BITS, NUM_CHANNELS
from titanrun.components.data.spec.taught_record import (
    PATH,
    RECORD,
    WRITE_AGAIN,
    WRITE_OTHERS,
    TaughtRecord,
    build_prediction_error,
    read_taught_record,
)
from titanrun.components.data.token_blocks import (
    VerifiedTokens,
    hash_blocks,
    read_block_digests,
    write_block_digests,
)
from titanrun.config.problems import ProblemsFound, problem_error

IDS, LOGPROBS, ENDS = "ids.npy", "logprobs.npy", "ends.npy"
SMALLEST = -60_000.0
"""Smallest log-probability that fp16 holds, about."""
NO_PREDICTION = int(np.array(SMALLEST, dtype=np.float16).view(np.uint16))
ONE_BITS = int(np.float32(1).view(np.int32))


class PredictionFile:
    """Rows of a file of predictions, each part compared with its digest when it is first read.

    Log-probabilities are the bits of fp16.

    Raises:
        ProblemsFound: A data problem with the name of the file if it is not what was written.
    """

    def __init__(self, path: Path) -> None:
        try:
            rows = np.atleast_2d(np.load(path, mmap_mode="r"))
        except (OSError, ValueError, EOFError) as error:
            raise build_prediction_error(path, f"cannot be read: {error}") from None
        if path.name == ENDS:
            rows = rows.T
        self.num_rows, self._width = rows.shape
        values = to_integers(rows)
        digests = read_block_digests(get_digest_path(path), values, index_digest=path.name)
        if digests is None:
            raise build_prediction_error(path, "has no digests, or is not what was written")
        self._path, self._values = path, values
        self._verified = VerifiedTokens(
            values, digests, path=path, discard=lambda: None, damage_hint=WRITE_AGAIN
        )

    def read(self, start: int, end: int) -> NDArray[np.integer]:
        """Return some of the rows."""
        try:
            values = self._verified[start * self._width : end * self._width]
        except ProblemsFound as found:
            raise build_prediction_error(self._path, found.problems[0].message) from None
        return values.reshape(-1, self._width)


def to_integers(rows: NDArray[Any]) -> NDArray[np.integer]:
    """Return all values in one row, those of fp16 as their bits."""
    flat = rows.reshape(-1)
    return flat.view(np.uint16) if flat.dtype == np.float16 else flat


def get_digest_path(path: Path) -> Path:
    """Return the file with the digests of a file of predictions."""
    return path.with_name(f"{path.name}.digests")


class TaughtRows:
    """Sequences of a dataset with the predictions of a teacher in further channels.

    Args:
        dataset: sequences with channels.
        folder: folder of the predictions of these sequences.
        top_k: predictions of a token to read.
    """

    def __init__(self, dataset: IndexedDataset, folder: Path, top_k: int) -> None:
        self._dataset, self._top_k = dataset, top_k
        self._ids, self._logprobs = (PredictionFile(folder / name) for name in (IDS, LOGPROBS))
        ends = PredictionFile(folder / ENDS)
        self._ends = ends.read(0, ends.num_rows)[:, 0]
        record = (folder / RECORD).read_text(encoding="utf-8")
        self.fingerprint = f"{dataset.fingerprint} taught {top_k} {record}"
        self.max_token_id = dataset.max_token_id

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> NDArray[np.int64]:
        """Return the channels of a sequence, then its predictions, [4 + K, seq_len + 1].

        A prediction is with its label. Tokens that do not count have none.
        """
        row = self._dataset[index]
        taught = np.full((NUM_CHANNELS + self._top_k, row.shape[1]), NO_PREDICTION)
        taught[3] = ONE_BITS
        taught[: len(row)] = row
        labels = np.flatnonzero(row[1])
        end = int(self._ends[index])
        start = end - len(labels)
        ids_TK = self._ids.read(start, end)[:, : self._top_k].astype(np.int64)
        bits_TK = self._logprobs.read(start, end)[:, : self._top_k].astype(np.int64)
        taught[NUM_CHANNELS:, labels] = ((ids_TK << LOGPROB_BITS) | bits_TK).T
        return taught

    def check(self) -> None:
        """Raise a data problem if the sequences have changed since they were opened."""
        self._dataset.check()


def open_taught_rows(
    dataset: IndexedDataset, folder: Path, *, top_k: int, temperature: float
) -> TaughtRows:
    """Return a dataset with the predictions of a teacher.

    Raises:
        ProblemsFound: There are none, or they are of other sequences or another temperature.
    """
    record = read_taught_record(folder)
    if record is None:
        message = f"no predictions of a teacher in '{folder}'"
        raise problem_error("data", message, path=PATH, hint=WRITE_OTHERS, is_absolute=True)
    if record.fingerprint != dataset.fingerprint:
        wrong: str | None = "of other sequences than the recipe's"
    else:
        wrong = record.find_difference(top_k=top_k, temperature=temperature)
    if wrong is not None:
        message = f"the predictions in '{folder}' are {wrong}"
        raise problem_error("data", message, path=PATH, hint=WRITE_OTHERS, is_absolute=True)
    return TaughtRows(dataset, folder, min(top_k, record.vocab_size))


@contextmanager
def write_taught_files(
    folder: Path, record: TaughtRecord, counts: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.float16]]]:
    """Yield the arrays of ids and log-probabilities to fill, [T, K]. The record is written last.

    Args:
        folder: folder of the files.
        record: what they are of.
        counts: number of tokens in the loss of each sequence.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shape = (int(counts.sum()), record.top_k)
    ids_TK = open_memmap(folder / IDS, mode="w+", dtype=np.uint32, shape=shape)
    logprobs_TK = open_memmap(folder / LOGPROBS, mode="w+", dtype=np.float16, shape=shape)
    yield ids_TK, logprobs_TK
    ids_TK.flush()
    logprobs_TK.flush()
    ends = np.cumsum(counts)
    np.save(folder / ENDS, ends)
    for name, rows in ((IDS, ids_TK), (LOGPROBS, logprobs_TK), (ENDS, ends)):
        values = to_integers(rows)
        path = get_digest_path(folder / name)
        write_block_digests(path, values, hash_blocks(values), index_digest=name)
    temporary = folder / f"{RECORD}.tmp"
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / RECORD)
