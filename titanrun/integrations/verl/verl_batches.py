"""Conversion of verl microbatches to engine batches, and of outputs back to verl's order.

Shapes: N sequences, T tokens per sequence, V vocabulary, X all tokens of the sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from titanrun.components.data.document_ids import build_document_ids
from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.vocab_parallel import compute_label_logprobs, compute_token_entropy
from titanrun.integrations.verl.verl_sequences import VerlBatch, get_batch_setting, get_sequences
from titanrun.training.token_sampling import scale_logits

DocumentRule = Literal["difference", "reset"]
MICROBATCH_KEY = "microbatch"


@dataclass(frozen=True, slots=True)
class VerlBatchLayout:
    """Layout of verl's sequences in an engine batch.

    Args:
        is_packed: whether all sequences share one packed sequence, with documents separated by
            positions. Otherwise each one is padded.
        document_rule: a document starts at a position that is not the previous one plus 1
            (`difference`), or that is 0 (`reset`).
    """

    is_packed: bool
    document_rule: DocumentRule = "difference"

    def build_batch(
        self, data: VerlBatch, number: int, *, width: int, min_batch_size: int
    ) -> TokenBatch:
        """Build the engine's batch of a microbatch, with the microbatch number for each token.

        Args:
            data: with `input_ids`, and `position_ids` unless positions count from 0.
            number: the number of the microbatch.
            width: smallest number of tokens per sequence. Padding is a separate document without
                labels.
            min_batch_size: smallest number of sequences if they are not packed.
        """
        tokens = get_sequences(data)
        positions = get_sequences(data, "position_ids") if "position_ids" in data.keys() else None  # noqa: SIM118 (a TensorDict)
        batch = (
            self._build_packed_batch(tokens, positions, width)
            if self.is_packed
            else build_padded_batch(tokens, positions, width, min_batch_size)
        )
        batch = replace(batch, extra={MICROBATCH_KEY: torch.full_like(batch.tokens, number)})
        if self.document_rule == "reset" and self.is_packed:
            assert batch.positions is not None
            return replace(batch, document_ids=build_document_ids(batch.positions[:, 1:] == 0))
        return batch

    def _build_packed_batch(
        self, tokens: Sequence[Tensor], positions: Sequence[Tensor] | None, width: int
    ) -> TokenBatch:
        padding = width - sum(map(len, tokens))
        if padding > 0:
            # in documents of their own, none longer than the sequences
            pieces = tokens[0].new_zeros(padding).split(max(map(len, tokens)))
            tokens = [*tokens, *pieces]
            if positions is not None:
                device = pieces[0].device
                positions = [
                    *positions,
                    *(torch.arange(len(piece), device=device) for piece in pieces),
                ]
        offsets = torch.tensor([0, *map(len, tokens)], device=tokens[0].device).cumsum(0)
        batch = TokenBatch.from_jagged(
            torch.cat(list(tokens)),
            offsets,
            positions_X=None if positions is None else torch.cat(list(positions)),
        )
        if padding > 0:
            batch.loss_mask[:, -padding:] = False
        return batch

    def split_by_sequence(self, values_NT: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Split one value per token into a tensor for each sequence."""
        if self.is_packed:
            return list(values_NT[0, : sum(lengths)].split(list(lengths)))
        return [values_NT[row, :length] for row, length in enumerate(lengths)]


def build_padded_batch(
    tokens: Sequence[Tensor], positions: Sequence[Tensor] | None, width: int, min_batch_size: int
) -> TokenBatch:
    """Build a batch with one right-padded sequence per input, and empty ones if needed."""
    width, missing = max(width, *map(len, tokens)), max(0, min_batch_size - len(tokens))
    empty = [tokens[0].new_zeros(0)] * missing

    def pad(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            [torch.nn.functional.pad(value, (0, width - len(value))) for value in (*values, *empty)]
        )

    lengths_N = torch.tensor([*map(len, tokens), *[0] * missing], device=tokens[0].device)
    batch = TokenBatch.from_padded(pad(tokens), lengths_N)
    if positions is None:
        return batch
    assert batch.positions is not None
    own_NT = torch.arange(width, device=lengths_N.device) < lengths_N.unsqueeze(1)
    return replace(batch, positions=torch.where(own_NT, pad(positions), batch.positions))


@dataclass(frozen=True, slots=True)
class EntropyOptions:
    """How the entropy is computed, which changes memory and nothing else.

    Args:
        chunk_tokens: tokens whose distributions are in memory at once. None: all.
        should_recompute: whether the backward pass computes the distributions again.
    """

    chunk_tokens: int | None = None
    should_recompute: bool = False


def compute_token_outputs(
    logits_NTV: Tensor,
    batch: TokenBatch,
    data: VerlBatch,
    batch_layout: VerlBatchLayout,
    entropy: EntropyOptions = EntropyOptions(),
) -> dict[str, list[Tensor]]:
    """Compute next-token log-probabilities, and the entropy if `calculate_entropy` is set.

    Both are in fp32, of logits divided by `temperature`, a scalar or one value per sequence. The
    log-probability of a sequence's last token is 0.
    """
    lengths = [len(sequence) for sequence in get_sequences(data)]
    temperature = get_batch_setting(data, "temperature", 1.0)
    if isinstance(temperature, Tensor):
        temperature = expand_to_tokens(
            temperature.to(logits_NTV.device), lengths, batch_layout, batch
        )
    scaled_NTV = scale_logits(logits_NTV, temperature)
    valid_NT = batch.label_mask()
    logprobs_NT = compute_label_logprobs(
        scaled_NTV, batch.labels.masked_fill(~valid_NT, 0)
    ).masked_fill(~valid_NT, 0.0)
    found = {"log_probs": batch_layout.split_by_sequence(logprobs_NT, lengths)}
    if get_batch_setting(data, "calculate_entropy", False):
        found["entropy"] = batch_layout.split_by_sequence(
            compute_token_entropy(
                scaled_NTV,
                chunk_tokens=entropy.chunk_tokens,
                should_recompute=entropy.should_recompute,
            ),
            lengths,
        )
    return found


def expand_to_tokens(
    value_B: Tensor, lengths: Sequence[int], batch_layout: VerlBatchLayout, batch: TokenBatch
) -> Tensor:
    """Expand one value per sequence to its tokens [N, T, 1], with 1 for padding."""
    values_NT = torch.ones(batch.tokens.shape, dtype=torch.float32, device=value_B.device)
    if batch_layout.is_packed:
        values_NT[0, : sum(lengths)] = (
            value_B.flatten()
            .float()
            .repeat_interleave(torch.tensor(lengths, device=value_B.device))
        )
    else:
        values_NT[: len(lengths)] = value_B.flatten().float().unsqueeze(1)
    return values_NT.unsqueeze(-1)
