"""Samples in rows: one step's batch of all ranks, and each rank's part of it.

Shapes: N rows, T tokens of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from titanrun.components.data.batch import IGNORE, TokenBatch
from titanrun.rl.samples import TrainingSample

LengthWeight = Callable[[int, int, int, int], float]
# what becomes of a token's loss, which is then divided by all tokens: by (tokens, sequences, tokens of its own sequence, constant)
LENGTH_NORMS: dict[str, LengthWeight] = {
    "token_mean": lambda tokens, sequences, own, constant: 1.0,
    "sequence_mean": lambda tokens, sequences, own, constant: tokens / (sequences * own),
    "sequence_sum": lambda tokens, sequences, own, constant: tokens / sequences,
    "constant": lambda tokens, sequences, own, constant: tokens / (sequences * constant),
}


@dataclass(frozen=True, slots=True)
class Packed:
    """One step's rows of all ranks. `tokens`: how many count; `dropped`: samples that fit into no row."""

    batch: TokenBatch
    tokens: int
    sequences: int
    dropped: int

    @property
    def fill(self) -> float:
        """Share of the rows' tokens that belong to a sample."""
        return float((self.batch.extra["sequences"] >= 0).float().mean())


def next_fit(lengths: Sequence[int], room: int, *, share_rows: bool) -> list[list[int]]:
    """The numbers of the samples of each row, in order; without sharing each has a row of its own."""
    rows: list[list[int]] = []
    left = 0
    for number, length in enumerate(lengths):
        if not rows or not share_rows or length > left:
            rows.append([])
            left = room
        rows[-1].append(number)
        left -= length
    return rows


def pack(
    samples: Sequence[TrainingSample], *, row_length: int, multiple: int, share_rows: bool, length_norm: str, longest_answer: int
) -> Packed:
    """Rows of samples, each with positions from 0, a multiple of `multiple` of them; what is left of a row is a document of its own.

    Args:
        samples: of all ranks.
        row_length: tokens of a row.
        multiple: rows that all ranks take in one pass.
        share_rows: whether samples share rows; needs attention that does not cross documents.
        length_norm: see LENGTH_NORMS.
        longest_answer: the constant of the length norm of that name.
    """
    fitting = [sample for sample in samples if 2 <= len(sample.tokens) <= row_length + 1]
    learned = [[counts and isfinite(logprob) for counts, logprob in zip(s.mask, s.logprobs, strict=True)][1:] for s in fitting]
    kept = [(sample, own) for sample, own in zip(fitting, learned, strict=True) if any(own)]
    total = sum(sum(own) for _, own in kept)
    rows = next_fit([len(sample.tokens) - 1 for sample, _ in kept], row_length, share_rows=share_rows)
    count = max(1, -(-len(rows) // multiple)) * multiple
    made = empty_rows(count, row_length)
    for row, numbers in enumerate(rows):
        end = 0
        for number in numbers:
            sample, own = kept[number]
            weight = LENGTH_NORMS[length_norm](total, len(kept), sum(own), longest_answer)
            end = write(made, row, end, sample, own, number=number, weight=weight)
    return Packed(made, total, len(kept), len(samples) - len(fitting))


def empty_rows(count: int, length: int) -> TokenBatch:
    """Rows in which nothing counts."""
    shape = (count, length)
    extra = {name: torch.zeros(shape) for name in ("logprobs", "advantages", "weight")}
    extra["sequences"] = torch.full(shape, -1, dtype=torch.int64)
    positions_NT = torch.arange(length).repeat(count, 1)
    tokens_NT = torch.zeros(shape, dtype=torch.int64)
    return TokenBatch(tokens_NT, torch.full_like(tokens_NT, IGNORE), positions_NT, torch.zeros(shape, dtype=torch.bool), extra)


def write(batch: TokenBatch, row: int, start: int, sample: TrainingSample, learned: list[bool], *, number: int, weight: float) -> int:
    """Puts a sample into a row. Gives where it ends."""
    assert batch.positions is not None
    end = start + len(sample.tokens) - 1
    batch.tokens[row, start:end] = torch.tensor(sample.tokens[:-1])
    batch.labels[row, start:end] = torch.tensor(sample.tokens[1:])
    batch.loss_mask[row, start:end] = torch.tensor(learned)
    batch.positions[row, start:end] = torch.arange(end - start)
    batch.positions[row, end:] = torch.arange(batch.tokens.size(1) - end)
    finite = [logprob if isfinite(logprob) else 0.0 for logprob in sample.logprobs[1:]]
    batch.extra["logprobs"][row, start:end] = torch.tensor(finite)
    batch.extra["advantages"][row, start:end] = sample.advantage
    batch.extra["weight"][row, start:end] = weight
    batch.extra["sequences"][row, start:end] = number
    return end


def share_of(batch: TokenBatch, *, rows_per_pass: int, rank: int, ranks: int) -> list[TokenBatch]:
    """One data-parallel rank's passes: the r-th of equal shares of each pass."""
    passes = batch.split(rows_per_pass * ranks)
    return [part.split(rows_per_pass)[rank] for part in passes]
