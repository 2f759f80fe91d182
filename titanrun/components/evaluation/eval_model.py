"""Protocol of models that tasks evaluate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from torch import Tensor

from titanrun.components.data.config import DatasetConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

TaskMetrics: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """Score of a continuation.

    `logprob` is the sum of its tokens' log-probabilities. `is_greedy` tells whether each token was
    the most likely one.
    """

    logprob: float
    is_greedy: bool


class EvalModel(Protocol):
    """Model with its weights, and the tokenizer that it was trained with."""

    tokenizer: Tokenizer | None
    max_seq_len: int
    """Maximum sequence length in tokens."""
    batch_size: int
    cache_folder: Path

    @property
    def held_out(self) -> tuple[DatasetConfig, Holdout] | None:
        """Training dataset with the side of its documents that training holds out."""
        ...

    def compute_loss_sum(self, batch: TokenBatch) -> Tensor:
        """Return the cross entropy of the labels in the loss, summed in fp32."""
        ...

    def score_continuations(
        self, pairs: Sequence[tuple[list[int], list[int]]]
    ) -> list[ScoredContinuation]:
        """Score the second token ids of each pair as a continuation of the first, nonempty ones."""
        ...

    def generate_greedy(
        self, prompts: Sequence[list[int]], *, max_new_tokens: int, end_ids: frozenset[int]
    ) -> list[list[int]]:
        """Return the most likely tokens after each prompt, up to an end token, exclusive."""
        ...

    def open_dataset(self, dataset: object, *, seq_len: int) -> IndexedDataset:
        """Open a dataset with sequences of seq_len + 1 ids, of `held_out` if it is None.

        Raises:
            ProblemsFound: If it holds ids that the model does not have.
        """
        ...
