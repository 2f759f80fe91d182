"""Packing of rollouts into sequences: one step's batch of all ranks, and each rank's part.

Shapes: N sequences, T tokens per sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from titanrun.components.data.token_batch import TokenBatch, TokenSample
from titanrun.rl.rollout_types import TrainingSample

# values per token that policy losses read, in addition to `sequences`
TOKEN_VALUES = ("logprobs", "advantages", "weight")
LengthWeight = Callable[[int, int, int, int], float]
# factor of a token's loss, which is then divided by all tokens. Arguments: tokens, sequences,
# tokens of its own sequence, constant
LENGTH_NORMS: dict[str, LengthWeight] = {
    "token_mean": lambda tokens, sequences, own, constant: 1.0,
    "sequence_mean": lambda tokens, sequences, own, constant: tokens / (sequences * own),
    "sequence_sum": lambda tokens, sequences, own, constant: tokens / sequences,
    "constant": lambda tokens, sequences, own, constant: tokens / (sequences * constant),
}


@dataclass(frozen=True, slots=True)
class PackedRollouts:
    """One step's sequences of all ranks.

    Args:
        batch: the sequences [N, T].
        num_tokens: tokens with a loss.
        num_sequences: samples in the batch.
        num_dropped: samples that are longer than a sequence.
    """

    batch: TokenBatch
    num_tokens: int
    num_sequences: int
    num_dropped: int

    @property
    def fill_fraction(self) -> float:
        """Fraction of tokens that belong to a sample."""
        return float((self.batch.extra["sequences"] >= 0).float().mean())


def pack_rollouts(
    samples: Sequence[TrainingSample],
    *,
    seq_len: int,
    batch_multiple: int,
    should_pack: bool,
    length_norm: str,
    max_completion_tokens: int,
) -> PackedRollouts:
    """Pack samples into sequences, each sample with positions from 0.

    Padding is a separate document. The number of sequences is a multiple of `batch_multiple`.

    Args:
        samples: samples of all ranks.
        seq_len: tokens per sequence.
        batch_multiple: sequences that all ranks process in one pass.
        should_pack: whether samples share sequences. Requires attention that does not cross
            documents.
        length_norm: see LENGTH_NORMS.
        max_completion_tokens: the constant of the length norm `constant`.
    """
    fitting = [sample for sample in samples if 2 <= len(sample.tokens) <= seq_len + 1]
    learned = [
        [counts and isfinite(logprob) for counts, logprob in zip(s.mask, s.logprobs, strict=True)]
        for s in fitting
    ]
    kept = [(sample, own) for sample, own in zip(fitting, learned, strict=True) if any(own[1:])]
    total = sum(sum(own[1:]) for _, own in kept)
    made = []
    for sample, own in kept:
        weight = LENGTH_NORMS[length_norm](total, len(kept), sum(own[1:]), max_completion_tokens)
        finite = [logprob if isfinite(logprob) else 0.0 for logprob in sample.logprobs]
        made.append(
            TokenSample(
                sample.tokens,
                own,
                {"logprobs": finite, "advantages": sample.advantage, "weight": weight},
            )
        )
    batch = TokenBatch.from_samples(
        made,
        seq_len=seq_len,
        allows_packing=should_pack,
        batch_size_multiple=batch_multiple,
        extra=TOKEN_VALUES,
    )
    return PackedRollouts(batch, total, len(kept), len(samples) - len(fitting))


def build_empty_batch(count: int, length: int) -> TokenBatch:
    """Build sequences in which no token has a loss."""
    return TokenBatch.empty(count, length, extra=TOKEN_VALUES)


def shard_for_rank(
    batch: TokenBatch, *, local_batch_size: int, dp_rank: int, dp_size: int
) -> list[TokenBatch]:
    """Return the passes of one data-parallel rank: the r-th of equal parts of each pass."""
    passes = batch.split(local_batch_size * dp_size)
    return [part.split(local_batch_size)[dp_rank] for part in passes]
