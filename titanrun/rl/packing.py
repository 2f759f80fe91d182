"""Samples in rows: one step's batch of all ranks, and each rank's part of it.

Shapes: N rows, T tokens of a row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from titanrun.components.data.batch import TokenBatch, TokenSample
from titanrun.rl.samples import TrainingSample

# what losses of a policy are told of each token, beside `sequences`
VALUES = ("logprobs", "advantages", "weight")
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


def pack(
    samples: Sequence[TrainingSample],
    *,
    row_length: int,
    multiple: int,
    share_rows: bool,
    length_norm: str,
    longest_answer: int,
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
    learned = [
        [counts and isfinite(logprob) for counts, logprob in zip(s.mask, s.logprobs, strict=True)]
        for s in fitting
    ]
    kept = [(sample, own) for sample, own in zip(fitting, learned, strict=True) if any(own[1:])]
    total = sum(sum(own[1:]) for _, own in kept)
    made = []
    for sample, own in kept:
        weight = LENGTH_NORMS[length_norm](total, len(kept), sum(own[1:]), longest_answer)
        finite = [logprob if isfinite(logprob) else 0.0 for logprob in sample.logprobs]
        made.append(
            TokenSample(
                sample.tokens,
                own,
                {"logprobs": finite, "advantages": sample.advantage, "weight": weight},
            )
        )
    batch = TokenBatch.from_samples(
        made, row_length=row_length, share_rows=share_rows, multiple=multiple, extra=VALUES
    )
    return Packed(batch, total, len(kept), len(samples) - len(fitting))


def empty_rows(count: int, length: int) -> TokenBatch:
    """Rows in which nothing counts."""
    return TokenBatch.empty(count, length, extra=VALUES)


def share_of(batch: TokenBatch, *, rows_per_pass: int, rank: int, ranks: int) -> list[TokenBatch]:
    """One data-parallel rank's passes: the r-th of equal shares of each pass."""
    passes = batch.split(rows_per_pass * ranks)
    return [part.split(rows_per_pass)[rank] for part in passes]
