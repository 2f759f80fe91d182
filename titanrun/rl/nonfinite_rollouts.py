"""Token ids of rollouts in non-finite sequences, for the report of a bad step."""

from collections.abc import Sequence
from typing import Any

from titanrun.components.data.token_batch import TokenBatch


def collect_token_ids(batches: Sequence[TokenBatch], rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the prompt and completion ids of each rollout in some sequences.

    Args:
        batches: batches of this rank, [B, T] each, with the sample numbers `sequences` in `extra`.
        rows: numbers of sequences, counted over all batches.
    """
    places = [(batch, row) for batch in batches for row in range(len(batch.tokens))]
    found: list[dict[str, Any]] = []
    for number in rows:
        batch, row = places[number]
        samples_T = batch.extra["sequences"][row]
        for sample in sorted({*samples_T.tolist()} - {-1}):
            is_own_T = samples_T == sample
            labels, learned = batch.labels[row][is_own_T], batch.loss_mask[row][is_own_T]
            tokens = [int(batch.tokens[row][is_own_T][0]), *labels.tolist()]
            prompt_length = int(learned.nonzero()[0]) + 1
            found.append(
                {
                    "row": number,
                    "prompt_ids": tokens[:prompt_length],
                    "completion_ids": tokens[prompt_length:],
                }
            )
    return found
