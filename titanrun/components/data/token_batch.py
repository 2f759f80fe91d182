"""Training batches: the protocol, and the batch of a language model.

Shapes: N sequences, T tokens of a sequence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from titanrun.components.data.prediction_channels import NUM_CHANNELS, decode_predictions

IGNORE_INDEX = -100
"""Label of a position that does not count in the loss, as in the cross entropy of torch and Hugging
Face."""


def select_token_ids(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids [N, T+1] of samples with or without channels, as `TokenBatch` takes them."""
    return samples if samples.ndim == 2 else samples[:, 0]


class Batch(Protocol):
    """Input of one forward and backward pass.

    `loss_mask` tells which tokens count in the loss, if they have labels.
    """

    @property
    def loss_mask(self) -> Tensor:
        """Mask of the tokens that count in the loss, if they have labels."""

    def forward_model(self, model: nn.Module) -> Tensor:
        """Run the model on the batch; return its output, one vector per token."""

    def to(self, device: torch.device | str) -> Self:
        """Return the same batch on `device`."""

    def slice_sequence(self, slice_tensor: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch of the tokens that `slice_tensor` selects along dim 1."""

    def label_mask(self) -> Tensor:
        """Return the mask of the tokens that count in the loss, [N, T] bool."""

    def num_valid_tokens(self) -> Tensor:
        """Return the number of tokens in the loss (int64), or their total weight (fp32).

        The result is a scalar tensor on the batch's device.
        """


def compute_loss_divisor(num_valid_tokens: Tensor) -> Tensor:
    """Return the divisor of a loss sum for its mean: the number or weight of tokens.

    Return 1 if no token counts.
    """
    return torch.where(num_valid_tokens > 0, num_valid_tokens, torch.ones_like(num_valid_tokens))


@dataclass(frozen=True, slots=True)
class TokenSample:
    """Sequence for `TokenBatch.from_samples`.

    `loss_mask` and `extra` have one value per token. A single value in `extra` is for all tokens.
    """

    tokens: Sequence[int]
    loss_mask: Sequence[bool]
    extra: Mapping[str, float | Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Token sequences with the label of each token. All tensors are [N, T].

    `positions` None means 0 to T-1 in each sequence. `extra` holds further values of each token by
    name. `document_ids` number the documents of a sequence, if attention must not cross them.
    `weights` are the loss weights of the labels, None means equal weights. `document_starts` [N, M]
    are the columns at which documents start, in int32 and padded with T, for kernels that take
    documents as separate sequences.
    """

    tokens: Tensor
    labels: Tensor
    positions: Tensor | None
    loss_mask: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)
    document_ids: Tensor | None = None
    weights: Tensor | None = None
    document_starts: Tensor | None = None

    @classmethod
    def from_sequences(cls, sequences: NDArray[np.int64] | Tensor) -> "TokenBatch":
        """Build a batch from samples [N, T+1] of a token stream.

        The first T ids of a sample are its inputs, the last T its labels. Samples [N, 3, T+1] also
        hold which ids count as labels, 0 or 1, and their positions. Samples [N, 4, T+1] also hold
        the bits of each label's weight, an fp32 number. Further channels are predictions of a
        teacher (taught_rows.py).
        """
        sequences = torch.as_tensor(sequences)
        rows_NS = sequences if sequences.ndim == 2 else sequences[:, 0]
        inputs_NT, labels_NT = rows_NS[:, :-1].contiguous(), rows_NS[:, 1:].contiguous()
        if sequences.ndim == 2:
            return cls(inputs_NT, labels_NT, None, torch.ones_like(labels_NT, dtype=torch.bool))
        weights = (
            sequences[:, 3, 1:].to(torch.int32).view(torch.float32)
            if sequences.size(1) >= NUM_CHANNELS
            else None
        )
        return cls(
            inputs_NT,
            labels_NT,
            sequences[:, 2, :-1].contiguous(),
            sequences[:, 1, 1:] == 1,
            extra=decode_predictions(sequences[:, NUM_CHANNELS:, 1:]),
            weights=weights,
        )

    @classmethod
    def from_padded(
        cls,
        tokens_NT: Tensor,
        lengths_N: Tensor,
        *,
        padding_side: Literal["left", "right"] = "right",
        loss_mask_NT: Tensor | None = None,
        **extra: Tensor,
    ) -> "TokenBatch":
        """Build a batch from sequences padded to one length, each with `lengths_N` tokens.

        No id is reserved for padding. Padding on the left moves to the end of the sequence.
        `loss_mask_NT` and `extra` belong to the tokens. The batch stores them at the token before,
        whose label each is. A token without a next one has no label.
        """
        width = tokens_NT.size(1)
        column_T = torch.arange(width, device=tokens_NT.device)
        start_N = width - lengths_N if padding_side == "left" else torch.zeros_like(lengths_N)
        order_NT = (column_T + start_N.unsqueeze(1)) % width

        def shift_to_label(value_NT: Tensor) -> Tensor:
            return value_NT.gather(1, order_NT).roll(-1, dims=1)

        inside_NT = column_T + 1 < lengths_N.unsqueeze(1)
        mask_NT = (
            inside_NT if loss_mask_NT is None else inside_NT & shift_to_label(loss_mask_NT.bool())
        )
        labels_NT = shift_to_label(tokens_NT).masked_fill(~inside_NT, IGNORE_INDEX)
        # padding restarts at 0: it is its own document
        own_NT = column_T < lengths_N.unsqueeze(1)
        positions_NT = torch.where(own_NT, column_T, column_T - lengths_N.unsqueeze(1))
        following = {
            name: shift_to_label(value_NT).masked_fill(~inside_NT, 0)
            for name, value_NT in extra.items()
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
        """Build a batch of one row from consecutive sequences of different lengths.

        Sequence i is `values_X[offsets[i] : offsets[i + 1]]`. For `loss_mask_X` and `extra`, see
        `from_padded`. By default, positions count each sequence from 0.
        """
        lengths = offsets.diff()
        counted_X = torch.arange(values_X.numel(), device=values_X.device) - offsets[
            :-1
        ].repeat_interleave(lengths)
        has_next_X = torch.ones_like(values_X, dtype=torch.bool)
        has_next_X[offsets[1:] - 1] = False
        mask_X = has_next_X if loss_mask_X is None else has_next_X & loss_mask_X.bool().roll(-1)
        labels_X = values_X.roll(-1).masked_fill(~has_next_X, IGNORE_INDEX)
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
        seq_len: int,
        allows_packing: bool = True,
        batch_size_multiple: int = 1,
        extra: Sequence[str] = (),
    ) -> "TokenBatch":
        """Build a batch from samples in order, each with positions from 0.

        The padding of a row is its own document.

        Args:
            samples: Samples of 2 to `seq_len` + 1 tokens.
            seq_len: Tokens of a row.
            allows_packing: Whether several samples share a row, which needs attention within
                documents.
            batch_size_multiple: Divisor of the number of rows, and its minimum. The last rows are
                empty.
            extra: Names of the extra values of the samples. In addition, `sequences` holds the
                index of the sample of each token, -1 for padding.

        Raises:
            ValueError: If a sample is too short or too long.
        """
        wrong = [
            len(sample.tokens) for sample in samples if not 2 <= len(sample.tokens) <= seq_len + 1
        ]
        if wrong:
            raise ValueError(
                f"a sample has {wrong[0]:,} tokens, but a sequence of {seq_len:,} takes samples of "
                f"2 to {seq_len + 1:,}"
            )
        rows = pack_next_fit(
            [len(sample.tokens) - 1 for sample in samples], seq_len, allows_packing=allows_packing
        )
        batch = cls.empty(
            max(1, -(-len(rows) // batch_size_multiple)) * batch_size_multiple, seq_len, extra=extra
        )
        for row, numbers in enumerate(rows):
            end = 0
            for number in numbers:
                start, end = end, end + len(samples[number].tokens) - 1
                batch._write_sample(samples[number], row, slice(start, end), number)
        return batch

    @classmethod
    def empty(cls, count: int, length: int, *, extra: Sequence[str] = ()) -> "TokenBatch":
        """Build a batch [count, length] in which nothing counts.

        `extra` holds `sequences` and zeros for each name.
        """
        tokens_NT = torch.zeros(count, length, dtype=torch.int64)
        values = {name: torch.zeros(count, length) for name in extra} | {
            "sequences": torch.full_like(tokens_NT, -1)
        }
        labels_NT, nothing_NT = (
            torch.full_like(tokens_NT, IGNORE_INDEX),
            torch.zeros_like(tokens_NT, dtype=torch.bool),
        )
        return cls(tokens_NT, labels_NT, torch.arange(length).repeat(count, 1), nothing_NT, values)

    def _write_sample(self, sample: TokenSample, index: int, span: slice, sample_id: int) -> None:
        """Write a sample into a row."""
        assert self.positions is not None
        self.tokens[index, span] = torch.tensor(sample.tokens[:-1])
        self.labels[index, span] = torch.tensor(sample.tokens[1:])
        self.loss_mask[index, span] = torch.tensor(sample.loss_mask[1:])
        self.positions[index, span] = torch.arange(span.stop - span.start)
        self.positions[index, span.stop :] = torch.arange(self.tokens.size(1) - span.stop)
        self.extra["sequences"][index, span] = sample_id
        for name, value in sample.extra.items():
            self.extra[name][index, span] = torch.tensor(
                value[1:] if isinstance(value, Sequence) else value, dtype=torch.float32
            )

    def forward_model(self, model: nn.Module) -> Tensor:
        """Run the model on the batch; return logits [N, T, V]."""
        logits_NTV: Tensor = model(self.tokens, self.positions, **build_document_kwargs(self))
        return logits_NTV

    def to(self, device: torch.device | str) -> "TokenBatch":
        """Return the same batch on `device`."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "TokenBatch":
        """Return the same batch in page-locked memory, which an accelerator reads directly.

        Raises:
            RuntimeError: If there is no such memory.
        """
        return self._map_tensors(torch.Tensor.pin_memory)

    def split(self, batch_size: int) -> list["TokenBatch"]:
        """Split into consecutive batches of `batch_size` sequences; the last may be smaller."""
        return [
            self._slice_batch(start, start + batch_size)
            for start in range(0, len(self.tokens), batch_size)
        ]

    def slice_sequence(self, slice_tensor: Callable[[Tensor], Tensor]) -> "TokenBatch":
        """Return the batch of some tokens of each sequence, with their positions in it.

        Each token has its label, so labels need no neighbor. `document_ids` stay those of whole
        sequences, as attention needs them.
        """
        positions = torch.arange(self.tokens.size(1), device=self.tokens.device).expand_as(
            self.tokens
        )
        written_out = positions if self.positions is None else self.positions
        alone = replace(self, positions=written_out, document_ids=None, document_starts=None)
        share = alone._map_tensors(slice_tensor)
        if self.tokens.is_pinned():
            share = share.pin_memory()
        return replace(share, document_ids=self.document_ids, document_starts=self.document_starts)

    def label_mask(self) -> Tensor:
        """Return the mask of the labels that count in the loss, [N, T] bool."""
        return (self.labels != IGNORE_INDEX) & self.loss_mask

    def num_valid_tokens(self) -> Tensor:
        """Return the number of labels in the loss (int64), or their total weight (fp32).

        The result is a scalar tensor on the batch's device.
        """
        if self.weights is None:
            return self.label_mask().sum()
        return self.weights.double().masked_fill(~self.label_mask(), 0.0).sum().float()

    def sum_valid(self, values_NT: Tensor) -> Tensor:
        """Sum a value of each label over those that count, multiplied by their weights."""
        weighed_NT = values_NT if self.weights is None else values_NT * self.weights
        return weighed_NT.masked_fill(~self.label_mask(), 0.0).sum()

    def slice_tokens(self, start: int, end: int) -> "TokenBatch":
        """Return the tokens `start` to `end` of each sequence, with their labels."""
        alone = replace(self, document_ids=None, document_starts=None)
        return alone._map_tensors(lambda tensor: tensor[:, start:end])

    def _slice_batch(self, start: int, end: int) -> "TokenBatch":
        return self._map_tensors(lambda tensor: tensor[start:end])

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> "TokenBatch":
        positions = None if self.positions is None else change(self.positions)
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        documents, weights, starts = (
            None if of_each is None else change(of_each)
            for of_each in (self.document_ids, self.weights, self.document_starts)
        )
        return type(self)(
            change(self.tokens),
            change(self.labels),
            positions,
            change(self.loss_mask),
            extra,
            documents,
            weights,
            starts,
        )


def pack_next_fit(lengths: Sequence[int], seq_len: int, *, allows_packing: bool) -> list[list[int]]:
    """Return the indices of the samples of each row in order, one per row without packing."""
    rows: list[list[int]] = []
    left = 0
    for number, length in enumerate(lengths):
        if not rows or not allows_packing or length > left:
            rows.append([])
            left = seq_len
        rows[-1].append(number)
        left -= length
    return rows


def build_document_kwargs(batch: TokenBatch) -> dict[str, Tensor]:
    """Return the model's keyword arguments for documents, empty without them."""
    given = {"documents_BT": batch.document_ids, "document_starts_BM": batch.document_starts}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, eq=False)
class PairBatch(TokenBatch):
    """Batch in which each pair of conversations, compared by a loss, counts as one."""

    def num_valid_tokens(self) -> Tensor:
        """Return the number of rows with a label that counts."""
        return self.label_mask().any(dim=1).sum()
