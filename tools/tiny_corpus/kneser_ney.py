"""An interpolated Kneser-Ney trigram model: the held-out loss that a trained model has to beat.

Kneser and Ney 1995 in the interpolated form of Chen and Goodman 1999 (section 2.7), one absolute
discount an order.
"""

from dataclasses import dataclass

import numpy as np


def estimate_discount(counts: np.ndarray) -> float:
    """Return n1 / (n1 + 2 n2), or one half if nothing was seen once.

    n1 and n2 are how many events were seen once and twice.
    """
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once else 0.5


@dataclass(frozen=True)
class CountTable:
    """Discounted relative frequencies of the last token after a context.

    An event's key is context * vocab_size + token.
    """

    keys: np.ndarray
    counts_in_grad_norm: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float

    @classmethod
    def build(cls, keys: np.ndarray, counts: np.ndarray, *, vocab_size: int) -> "CountTable":
        """`keys` are sorted and different, `counts` say how often each was seen."""
        contexts, starts, kinds = np.unique(
            keys // vocab_size, return_index=True, return_counts=True
        )
        totals = np.add.reduceat(counts, starts)
        return cls(keys, counts, contexts, totals, kinds, estimate_discount(counts))

    def interpolate(self, keys: np.ndarray, lower: np.ndarray, *, vocab_size: int) -> np.ndarray:
        """Return P(token | context) for each key.

        `lower` is the probability from the shorter context.
        """
        counts = look_up(self.keys, self.counts_in_grad_norm, keys)
        totals = look_up(self.contexts, self.totals, keys // vocab_size)
        kinds = look_up(self.contexts, self.kinds, keys // vocab_size)
        # an unseen context has total 0 and leaves all the mass to the shorter one
        mixed = (
            np.maximum(counts - self.discount, 0.0) + self.discount * kinds * lower
        ) / np.maximum(totals, 1)
        return np.where(totals > 0, mixed, lower)


def look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each wanted key, 0 where it is missing; `keys` are sorted."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def trigrams(tokens: np.ndarray, *, bos_id: int) -> np.ndarray:
    """Return rows (before last, last, token) for each token but BOS.

    What lies before a document's BOS counts as BOS.
    """
    stream = np.asarray(tokens, dtype=np.int64)
    assert stream[0] == bos_id, "a stream starts with a document"
    last, before = np.roll(stream, 1), np.roll(stream, 2)
    before = np.where(last == bos_id, bos_id, before)
    return np.stack([before, last, stream], axis=1)[stream != bos_id]


@dataclass(frozen=True)
class TrigramModel:
    """Three tables over a uniform distribution.

    Trigram counts, and continuation counts of the two lower orders.
    """

    three: CountTable
    two: CountTable
    one: CountTable
    vocab_size: int

    @classmethod
    def build(cls, tokens: np.ndarray, *, vocab_size: int, bos_id: int) -> "TrigramModel":
        """Count the trigrams of a stream, and their continuations."""
        before, last, token = trigrams(tokens, bos_id=bos_id).T
        keys, counts = np.unique(
            (before * vocab_size + last) * vocab_size + token, return_counts=True
        )
        pair_keys, pair_counts = np.unique(keys % vocab_size**2, return_counts=True)
        token_keys, token_counts = np.unique(pair_keys % vocab_size, return_counts=True)
        tables = ((keys, counts), (pair_keys, pair_counts), (token_keys, token_counts))
        three, two, one = (CountTable.build(*table, vocab_size=vocab_size) for table in tables)
        return cls(three, two, one, vocab_size)

    def probabilities(self, before: np.ndarray, last: np.ndarray, token: np.ndarray) -> np.ndarray:
        """P(token | before, last), element by element."""
        size = self.vocab_size
        uniform = np.full(np.shape(token), 1.0 / size)
        unigram = self.one.interpolate(token, uniform, vocab_size=size)
        bigram = self.two.interpolate(last * size + token, unigram, vocab_size=size)
        return self.three.interpolate(
            (before * size + last) * size + token, bigram, vocab_size=size
        )


def kneser_ney_loss(
    train_tokens: np.ndarray, held_out_tokens: np.ndarray, *, vocab_size: int, bos_id: int
) -> float:
    """Return the mean loss in nats over the held-out tokens other than BOS.

    Each document is read from its own BOS on.
    """
    model = TrigramModel.build(train_tokens, vocab_size=vocab_size, bos_id=bos_id)
    before, last, token = trigrams(held_out_tokens, bos_id=bos_id).T
    return float(-np.log(model.probabilities(before, last, token)).mean())
