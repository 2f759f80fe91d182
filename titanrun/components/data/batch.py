"""What a model trains on: any batch, the batch of a language model, and what makes batches of rows.

Shapes: N rows, T tokens of a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from titanrun.config.problems import fail

IGNORE = -100
"""The label of a position that counts nothing in the loss, as in torch's and Hugging Face's cross entropy."""


def token_ids(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids [N, T+1] in rows of either kind that `TokenBatch.from_rows` takes."""
    return rows if rows.ndim == 2 else rows[:, 0]


class Batch(Protocol):
    """What one pass trains on. `loss_mask`: which of its tokens count in the loss, where they have labels."""

    @property
    def loss_mask(self) -> Tensor: ...

    def through(self, model: nn.Module) -> Tensor:
        """What the model gives for the batch, one row of numbers a token."""

    def to(self, device: torch.device | str) -> Self:
        """The same batch on `device`."""

    def shared(self, own_share: Callable[[Tensor], Tensor]) -> Self:
        """The batch of some tokens of each row, which `own_share` picks along dim 1."""

    def valid_mask(self) -> Tensor:
        """Which tokens count in the loss, [N, T] bool."""

    def valid_count(self) -> Tensor:
        """How many tokens count in the loss, one int64 on the batch's device; or what they weigh together, one fp32."""


def divisor_of(valid: Tensor) -> Tensor:
    """What a sum over the tokens that count is divided by for their mean: their number or weight, 1 where nothing counts."""
    return torch.where(valid > 0, valid, torch.ones_like(valid))


class BatchMaker(Protocol):
    """Makes batches of the rows that a dataset gives."""

    def training(self, rows: NDArray[Any], rows_per_pass: int) -> Sequence[Batch]:
        """The batches of this rank's rows of one step, each of `rows_per_pass` rows; the last one may have fewer."""

    def held_out(self, rows: NDArray[Any], *, counted: int) -> Batch:
        """The batch that measures these rows, of which the first `counted` count in the loss."""


@dataclass(frozen=True, slots=True)
class TokenSample:
    """A sequence for `TokenBatch.from_samples`. `learned` and `extra` belong to the tokens, one value each, or in `extra` one for all."""

    tokens: Sequence[int]
    learned: Sequence[bool]
    extra: Mapping[str, float | Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Rows of tokens with the token that follows each of them. Every tensor is [N, T].

    `positions` None means 0 to T-1 in each row. `extra` holds further values of each token by name. `documents` numbers the documents
    of a row, where attention must not cross them. `weights` says what each label weighs in the loss; None: all the same.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None
    loss_mask: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    documents: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def from_rows(cls, rows: NDArray[np.int64] | Tensor) -> "TokenBatch":
        """Rows [N, T+1] of a token stream: the first T ids of a row are its inputs, the last T its labels.

        Rows [N, 3, T+1] hold beside the ids which of them count as labels, 0 or 1, and their positions; rows [N, 4, T+1] the bits of
        each label's weight as well, an fp32 number.
        """
        rows = torch.as_tensor(rows)
        rows_NS = rows if rows.ndim == 2 else rows[:, 0]
        inputs_NT, labels_NT = rows_NS[:, :-1].contiguous(), rows_NS[:, 1:].contiguous()
        if rows.ndim == 2:
            return cls(inputs_NT, labels_NT, None, torch.ones_like(labels_NT, dtype=torch.bool))
        weights = rows[:, 3, 1:].to(torch.int32).view(torch.float32) if rows.size(1) == 4 else None
        return cls(
            inputs_NT, labels_NT, rows[:, 2, :-1].contiguous(), rows[:, 1, 1:] == 1, weights=weights
        )

    @classmethod
    def from_padded(
        cls,
        tokens_NT: Tensor,
        lengths_N: Tensor,
        *,
        side: Literal["left", "right"] = "right",
        loss_mask_NT: Tensor | None = None,
        **extra: Tensor,
    ) -> "TokenBatch":
        """Sequences that were filled up to one length, of which each has `lengths_N` tokens of its own: no id means filling.

        What is filled up on the left is moved to the beginning of its row. `loss_mask_NT` and `extra` belong to the tokens; the batch
        holds them beside the token before, whose label each is. A token without a next one has no label.
        """
        width = tokens_NT.size(1)
        column_T = torch.arange(width, device=tokens_NT.device)
        start_N = width - lengths_N if side == "left" else torch.zeros_like(lengths_N)
        order_NT = (column_T + start_N.unsqueeze(1)) % width

        def of_next(value_NT: Tensor) -> Tensor:
            return value_NT.gather(1, order_NT).roll(-1, dims=1)

        inside_NT = column_T + 1 < lengths_N.unsqueeze(1)
        mask_NT = inside_NT if loss_mask_NT is None else inside_NT & of_next(loss_mask_NT.bool())
        labels_NT = of_next(tokens_NT).masked_fill(~inside_NT, IGNORE)
        # filling restarts at 0: it is a document of its own
        own_NT = column_T < lengths_N.unsqueeze(1)
        positions_NT = torch.where(own_NT, column_T, column_T - lengths_N.unsqueeze(1))
        following = {
            name: of_next(value_NT).masked_fill(~inside_NT, 0) for name, value_NT in extra.items()
        }
        return cls(tokens_NT.gather(1, order_NT), labels_NT, positions_NT, mask_NT, following)

    @classmethod
    def from_jagged(
        cls,
        values_X: Tensor,
        offsets: Tensor,
        *,
        positions_X: Tensor | None = None,
        loss_mask_X: Tensor | None = None,
        **extra: Tensor,
    ) -> "TokenBatch":
        """Sequences one after the other, in one row: sequence i is `values_X[offsets[i] : offsets[i + 1]]`.

        `loss_mask_X` and `extra` as in `from_padded`. Positions count each sequence from 0 unless they are given.
        """
        lengths = offsets.diff()
        counted_X = torch.arange(values_X.numel(), device=values_X.device) - offsets[
            :-1
        ].repeat_interleave(lengths)
        has_next_X = torch.ones_like(values_X, dtype=torch.bool)
        has_next_X[offsets[1:] - 1] = False
        mask_X = has_next_X if loss_mask_X is None else has_next_X & loss_mask_X.bool().roll(-1)
        labels_X = values_X.roll(-1).masked_fill(~has_next_X, IGNORE)
        following = {
            name: value_X.roll(-1).masked_fill(~has_next_X, 0).unsqueeze(0)
            for name, value_X in extra.items()
        }
        positions_X = counted_X if positions_X is None else positions_X
        return cls(
            values_X.unsqueeze(0),
            labels_X.unsqueeze(0),
            positions_X.unsqueeze(0),
            mask_X.unsqueeze(0),
            following,
        )

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[TokenSample],
        *,
        row_length: int,
        share_rows: bool = True,
        multiple: int = 1,
        extra: Sequence[str] = (),
    ) -> "TokenBatch":
        """Samples in rows in their order, each with positions from 0; what is left of a row is a document of its own.

        Args:
            samples: of 2 to `row_length` + 1 tokens each; ValueError for others.
            row_length: tokens of a row.
            share_rows: whether samples share rows; needs attention that does not cross documents.
            multiple: rows are a multiple of it, the last ones empty; at least as many.
            extra: the values that samples have. Beside them `sequences` numbers the samples, -1 where there is none.
        """
        wrong = [
            len(sample.tokens)
            for sample in samples
            if not 2 <= len(sample.tokens) <= row_length + 1
        ]
        if wrong:
            raise ValueError(
                f"a sample has {wrong[0]} tokens, and a row of {row_length} takes samples of 2 to {row_length + 1}"
            )
        rows = next_fit(
            [len(sample.tokens) - 1 for sample in samples], row_length, share_rows=share_rows
        )
        batch = cls.empty(max(1, -(-len(rows) // multiple)) * multiple, row_length, extra=extra)
        for row, numbers in enumerate(rows):
            end = 0
            for number in numbers:
                start, end = end, end + len(samples[number].tokens) - 1
                batch._write(samples[number], row, slice(start, end), number)
        return batch

    @classmethod
    def empty(cls, count: int, length: int, *, extra: Sequence[str] = ()) -> "TokenBatch":
        """Rows [count, length] in which nothing counts, with `sequences` and zeros for each name of `extra`."""
        tokens_NT = torch.zeros(count, length, dtype=torch.int64)
        values = {name: torch.zeros(count, length) for name in extra} | {
            "sequences": torch.full_like(tokens_NT, -1)
        }
        labels_NT, nothing_NT = (
            torch.full_like(tokens_NT, IGNORE),
            torch.zeros_like(tokens_NT, dtype=torch.bool),
        )
        return cls(tokens_NT, labels_NT, torch.arange(length).repeat(count, 1), nothing_NT, values)

    def _write(self, sample: TokenSample, row: int, place: slice, number: int) -> None:
        """Puts a sample into a row."""
        assert self.positions is not None
        self.tokens[row, place] = torch.tensor(sample.tokens[:-1])
        self.labels[row, place] = torch.tensor(sample.tokens[1:])
        self.loss_mask[row, place] = torch.tensor(sample.learned[1:])
        self.positions[row, place] = torch.arange(place.stop - place.start)
        self.positions[row, place.stop :] = torch.arange(self.tokens.size(1) - place.stop)
        self.extra["sequences"][row, place] = number
        for name, value in sample.extra.items():
            self.extra[name][row, place] = torch.tensor(
                value[1:] if isinstance(value, Sequence) else value, dtype=torch.float32
            )

    def through(self, model: nn.Module) -> Tensor:
        """Logits [N, T, V]."""
        logits_NTV: Tensor = model(self.tokens, self.positions, **documents_of(self))
        return logits_NTV

    def to(self, device: torch.device | str) -> "TokenBatch":
        """The same batch on `device`."""
        return self._with_each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "TokenBatch":
        """The same batch in page-locked memory, which an accelerator reads by itself. Raises RuntimeError where there is none."""
        return self._with_each(torch.Tensor.pin_memory)

    def split(self, rows_per_part: int) -> list["TokenBatch"]:
        """Consecutive parts of `rows_per_part` rows; the last one may have fewer."""
        return [
            self._rows(start, start + rows_per_part)
            for start in range(0, len(self.tokens), rows_per_part)
        ]

    def shared(self, own_share: Callable[[Tensor], Tensor]) -> "TokenBatch":
        """The batch of some tokens of each row, with their positions in it. Labels need no neighbour: each is with its token.

        `documents` stay those of whole rows: attention sees these.
        """
        positions = torch.arange(self.tokens.size(1), device=self.tokens.device).expand_as(
            self.tokens
        )
        written_out = positions if self.positions is None else self.positions
        share = replace(self, positions=written_out, documents=None)._with_each(own_share)
        if self.tokens.is_pinned():
            share = share.pinned()
        return replace(share, documents=self.documents)

    def valid_mask(self) -> Tensor:
        """Which labels count in the loss, [N, T] bool."""
        return (self.labels != IGNORE) & self.loss_mask

    def valid_count(self) -> Tensor:
        """How many labels count in the loss, one int64 on the batch's device; where they have weights the sum of these, one fp32."""
        if self.weights is None:
            return self.valid_mask().sum()
        return self.weights.double().masked_fill(~self.valid_mask(), 0.0).sum().float()

    def sum_of_valid(self, values_NT: Tensor) -> Tensor:
        """The sum of a value of each label over those that count, each as often as it weighs."""
        weighed_NT = values_NT if self.weights is None else values_NT * self.weights
        return weighed_NT.masked_fill(~self.valid_mask(), 0.0).sum()

    def columns(self, start: int, end: int) -> "TokenBatch":
        """The tokens of each row from number `start` up to `end`, with their labels."""
        return replace(self, documents=None)._with_each(lambda tensor: tensor[:, start:end])

    def _rows(self, start: int, end: int) -> "TokenBatch":
        return self._with_each(lambda tensor: tensor[start:end])

    def _with_each(self, change: Callable[[Tensor], Tensor]) -> "TokenBatch":
        positions = None if self.positions is None else change(self.positions)
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        documents, weights = (
            None if of_each is None else change(of_each)
            for of_each in (self.documents, self.weights)
        )
        return type(self)(
            change(self.tokens),
            change(self.labels),
            positions,
            change(self.loss_mask),
            extra,
            documents,
            weights,
        )


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


def documents_of(batch: TokenBatch) -> dict[str, Tensor]:
    """What a model is told of documents, where it is told of any."""
    return {} if batch.documents is None else {"documents_BT": batch.documents}


@dataclass(frozen=True, slots=True)
class TokenBatches:
    """Makes batches of rows of token ids, for a model that knows `vocab_size` of them; None: nothing is said about that.

    `pins`: in page-locked memory.
    """

    vocab_size: int | None = None
    pins: bool = False

    def training(self, rows: NDArray[np.int64], rows_per_pass: int) -> list[TokenBatch]:
        """Consecutive batches. Raises ProblemsFound for a token id that the model has no embedding for."""
        if self.vocab_size is not None:
            check_token_ids(token_ids(rows), self.vocab_size)
        return self._placed(TokenBatch.from_rows(rows)).split(rows_per_pass)

    def held_out(self, rows: NDArray[np.int64], *, counted: int) -> TokenBatch:
        """One batch, in which no label of the last rows counts."""
        batch = TokenBatch.from_rows(rows)
        batch.loss_mask[counted:] = False
        return self._placed(batch)

    def _placed(self, batch: TokenBatch) -> TokenBatch:
        return batch.pinned() if self.pins else batch


def check_token_ids(rows: NDArray[np.int64], vocab_size: int) -> None:
    """Raises ProblemsFound for a token id that the model has no embedding for."""
    for id in (int(rows.max()), int(rows.min())):
        if not 0 <= id < vocab_size:
            message = (
                f"the data holds token id {id}, outside the model's vocabulary of {vocab_size}"
            )
            raise fail(
                "data",
                message,
                path=("training", "dataset"),
                help="use the tokenizer that fits the model, or set model.vocab_size",
            )


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch(TokenBatch):
    """Rows that count as one each: a pair of conversations that a loss compares."""

    def valid_count(self) -> Tensor:
        """How many rows have a label that counts."""
        return self.valid_mask().any(dim=1).sum()
