"""Collators of samples into batches: the protocol, and the collator of a language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.token_batch import Batch, TokenBatch, select_token_ids
from titanrun.config.problems import problem_error


class Collator(Protocol):
    """Builder of batches from the samples of a dataset."""

    def collate_train(self, samples: NDArray[Any], local_batch_size: int) -> Sequence[Batch]:
        """Build the batches of this rank's samples of one step, `local_batch_size` each.

        The last one may be smaller.
        """

    def collate_validation(self, samples: NDArray[Any], *, num_counted: int) -> Batch:
        """Build the batch for validation on these samples; only the first `num_counted` count."""


@dataclass(frozen=True, slots=True)
class TokenCollator:
    """Collator of token ids.

    Args:
        vocab_size: Number of ids that the model has embeddings for. None disables the check.
        pin_memory: Whether to put batches into page-locked memory.
        appends_padding: Whether samples are one token shorter than a sequence with its last label,
            so that all of their tokens are inputs.
    """

    vocab_size: int | None = None
    pin_memory: bool = False
    appends_padding: bool = False

    def collate_train(self, samples: NDArray[np.int64], local_batch_size: int) -> list[TokenBatch]:
        """Build consecutive batches.

        Raises:
            ProblemsFound: For a token id that the model has no embedding for.
        """
        if self.vocab_size is not None:
            check_token_ids(select_token_ids(samples), self.vocab_size)
        batch = TokenBatch.from_sequences(self._pad_if_enabled(samples))
        return self._pin_if_enabled(batch).split(local_batch_size)

    def collate_validation(self, samples: NDArray[np.int64], *, num_counted: int) -> TokenBatch:
        """Build one batch in which only labels of the first `num_counted` samples count."""
        batch = TokenBatch.from_sequences(self._pad_if_enabled(samples))
        batch.loss_mask[num_counted:] = False
        return self._pin_if_enabled(batch)

    def _pad_if_enabled(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.appends_padding:
            return samples
        return np.pad(samples, [(0, 0)] * (samples.ndim - 1) + [(0, 1)])

    def _pin_if_enabled(self, batch: TokenBatch) -> TokenBatch:
        return batch.pin_memory() if self.pin_memory else batch


def check_token_ids(token_ids: NDArray[np.int64], vocab_size: int) -> None:
    """Raise ProblemsFound for a token id that the model has no embedding for."""
    for token_id in (int(token_ids.max()), int(token_ids.min())):
        if not 0 <= token_id < vocab_size:
            message = (
                f"the data holds token id {token_id}, outside the model's vocabulary of "
                f"{vocab_size}"
            )
            raise problem_error(
                "data",
                message,
                path=("training", "dataset"),
                hint="use the tokenizer that fits the model, or set model.vocab_size",
            )
