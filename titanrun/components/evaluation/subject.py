"""What tasks ask of the model that they measure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.components.data.rows import Rows
from titanrun.components.tokenizers.tokenizer import Tokenizer

Numbers: TypeAlias = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scored:
    """How likely a continuation is: the sum of its tokens' log-probabilities, and whether each of them was the likeliest."""

    logprob: float
    is_greedy: bool


class Subject(Protocol):
    """A model with its weights, and the tokenizer it was trained with."""

    tokenizer: Tokenizer | None
    longest: int
    """Tokens of the longest row it takes."""
    batch_size: int
    cache_folder: Path

    def loss_sum(self, batch: TokenBatch) -> Tensor:
        """The cross entropy of the labels that count, summed up in fp32."""
        ...

    def scored(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
        """How likely the second token ids of each pair follow the first, which are not empty."""
        ...

    def continued(
        self, prompts: Sequence[list[int]], *, max_new_tokens: int, end_ids: frozenset[int]
    ) -> list[list[int]]:
        """The likeliest tokens after each prompt, up to an end token, which is left out."""
        ...

    def rows(self, dataset: object, *, seq_len: int) -> Rows:
        """The rows of a dataset, of seq_len + 1 ids. Raises ProblemsFound where they hold ids that the model does not have."""
        ...
