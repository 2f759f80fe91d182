"""Predictions of a teacher for the tokens of a dataset, in files.

A folder has the K likeliest ids of each token in the loss, their log-probabilities, and where the
tokens of each sequence end. The files of a dataset are those of its sequences, in their order.

Shapes: K predictions of a token, T tokens in the loss of all sequences.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.prediction_channels import LOGPROB_BITS, NUM_CHANNELS
from titanrun.config.json_text import parse_json
from titanrun.config.problems import DataPath, problem_error

IDS, LOGPROBS, ENDS, RECORD = "ids.npy", "logprobs.npy", "ends.npy", "teacher.json"
PATH: DataPath = ("loss", "teacher_logprobs", "path")
SMALLEST = -60_000.0
"""Smallest log-probability that fp16 holds, about."""
NO_PREDICTION = int(np.array(SMALLEST, dtype=np.float16).view(np.uint16))
ONE_BITS = int(np.float32(1).view(np.int32))


@dataclass(frozen=True, slots=True)
class TaughtRecord:
    """What predictions in files are of.

    Args:
        fingerprint: fingerprint of the dataset.
        top_k: predictions of a token.
        temperature: divisor of the teacher's logits.
        vocab_size: number of tokens that the teacher predicts.
        teacher: place of the teacher, for people.
    """

    fingerprint: str
    top_k: int
    temperature: float
    vocab_size: int
    teacher: str


class TaughtRows:
    """Sequences of a dataset with the predictions of a teacher in further channels.

    Args:
        dataset: sequences with channels.
        folder: folder of the predictions of these sequences.
        top_k: predictions of a token to read.
    """

    def __init__(self, dataset: IndexedDataset, folder: Path, top_k: int) -> None:
        self._dataset, self._top_k = dataset, top_k
        self._ids_TK, self._logprobs_TK = (
            np.load(folder / name, mmap_mode="r") for name in (IDS, LOGPROBS)
        )
        self._ends = np.load(folder / ENDS)
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
        place = slice(end - len(labels), end)
        ids_TK = self._ids_TK[place, : self._top_k].astype(np.int64)
        bits_TK = self._logprobs_TK[place, : self._top_k].view(np.uint16).astype(np.int64)
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
    hint = "titanrun data teach RECIPE writes them; remove the folder first if it has others"
    if record is None:
        message = f"no predictions of a teacher in '{folder}'"
        raise problem_error("data", message, path=PATH, hint=hint, is_absolute=True)
    wanted = min(top_k, record.vocab_size)
    wrong = [
        text
        for is_wrong, text in (
            (record.fingerprint != dataset.fingerprint, "of other sequences than the recipe's"),
            (record.temperature != temperature, f"of temperature {record.temperature:g}"),
            (record.top_k < wanted, f"the likeliest {record.top_k:,} only, not {wanted:,}"),
        )
        if is_wrong
    ]
    if wrong:
        message = f"the predictions in '{folder}' are {wrong[0]}"
        raise problem_error("data", message, path=PATH, hint=hint, is_absolute=True)
    return TaughtRows(dataset, folder, wanted)


def read_taught_record(folder: Path) -> TaughtRecord | None:
    """Return what the predictions in a folder are of, None if there are none."""
    file = folder / RECORD
    if not file.is_file():
        return None
    return TaughtRecord(**parse_json(file.read_text(encoding="utf-8")))


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
    np.save(folder / ENDS, np.cumsum(counts))
    temporary = folder / f"{RECORD}.tmp"
    temporary.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / RECORD)
