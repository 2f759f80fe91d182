"""Microbatches of verl as batches of the engine, and what the model gives for them back in verl's order.

Shapes: N rows, T tokens of a row, V vocabulary, X all tokens of the sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from titanrun.components.data.batch import TokenBatch
from titanrun.components.data.documents import numbered
from titanrun.distributed.vocabulary import label_logprobs, token_entropy
from titanrun.engines.verl.rows import Data, sequences, setting

Rule = Literal["difference", "reset"]
NUMBER = "microbatch"


@dataclass(frozen=True, slots=True)
class Layout:
    """How sequences become rows.

    Args:
        packs: one after the other in one row, where attention tells documents by positions; else each in a row of its own.
        rule: a document begins where a position is not the next one (`difference`), or where it is 0 (`reset`).
    """

    packs: bool
    rule: Rule = "difference"

    def batch(self, data: Data, number: int, *, width: int, rows: int) -> TokenBatch:
        """The engine's batch of a microbatch; its number stands beside every token.

        Args:
            data: with `input_ids`, and `position_ids` unless positions count from 0.
            width: tokens of a row, at least; what is filled up is a document of its own and has no labels.
            rows: rows, at least, where sequences are not packed.
        """
        tokens = sequences(data)
        positions = sequences(data, "position_ids") if "position_ids" in data.keys() else None  # noqa: SIM118 (a TensorDict)
        made = (
            self._packed(tokens, positions, width)
            if self.packs
            else padded(tokens, positions, width, rows)
        )
        made = replace(made, extra={NUMBER: torch.full_like(made.tokens, number)})
        if self.rule == "reset" and self.packs:
            assert made.positions is not None
            return replace(made, documents=numbered(made.positions[:, 1:] == 0))
        return made

    def _packed(
        self, tokens: Sequence[Tensor], positions: Sequence[Tensor] | None, width: int
    ) -> TokenBatch:
        filling = width - sum(map(len, tokens))
        if filling > 0:
            tokens = [*tokens, tokens[0].new_zeros(filling)]
            positions = (
                None
                if positions is None
                else [*positions, torch.arange(filling, device=tokens[0].device)]
            )
        offsets = torch.tensor([0, *map(len, tokens)], device=tokens[0].device).cumsum(0)
        made = TokenBatch.from_jagged(
            torch.cat(list(tokens)),
            offsets,
            positions_X=None if positions is None else torch.cat(list(positions)),
        )
        if filling > 0:
            made.loss_mask[:, -filling:] = False
        return made

    def of_sequences(self, values_NT: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """A number of each token, back with the sequences it is of."""
        if self.packs:
            return list(values_NT[0, : sum(lengths)].split(list(lengths)))
        return [values_NT[row, :length] for row, length in enumerate(lengths)]


def padded(
    tokens: Sequence[Tensor], positions: Sequence[Tensor] | None, width: int, rows: int
) -> TokenBatch:
    """A row for each sequence, filled up on the right; further rows hold nothing."""
    width, missing = max(width, *map(len, tokens)), max(0, rows - len(tokens))
    empty = [tokens[0].new_zeros(0)] * missing

    def filled(values: Sequence[Tensor]) -> Tensor:
        return torch.stack(
            [torch.nn.functional.pad(value, (0, width - len(value))) for value in (*values, *empty)]
        )

    lengths_N = torch.tensor([*map(len, tokens), *[0] * missing], device=tokens[0].device)
    made = TokenBatch.from_padded(filled(tokens), lengths_N)
    if positions is None:
        return made
    assert made.positions is not None
    own_NT = torch.arange(width, device=lengths_N.device) < lengths_N.unsqueeze(1)
    return replace(made, positions=torch.where(own_NT, filled(positions), made.positions))


def token_outputs(
    logits_NTV: Tensor, batch: TokenBatch, data: Data, layout: Layout
) -> dict[str, list[Tensor]]:
    """fp32 log-probabilities of the next token, 0 for the last of a sequence, and the entropy where `calculate_entropy` asks for it.

    Both of the logits divided by `temperature`: one number, or one for each sequence.
    """
    lengths = [len(sequence) for sequence in sequences(data)]
    temperature = setting(data, "temperature", 1.0)
    if isinstance(temperature, Tensor):
        temperature = of_tokens(temperature.to(logits_NTV.device), lengths, layout, batch)
    scaled_NTV = logits_NTV.float() / temperature
    valid_NT = batch.valid_mask()
    logprobs_NT = label_logprobs(scaled_NTV, batch.labels.masked_fill(~valid_NT, 0)).masked_fill(
        ~valid_NT, 0.0
    )
    found = {"log_probs": layout.of_sequences(logprobs_NT, lengths)}
    if setting(data, "calculate_entropy", False):
        found["entropy"] = layout.of_sequences(token_entropy(scaled_NTV), lengths)
    return found


def of_tokens(value_B: Tensor, lengths: Sequence[int], layout: Layout, batch: TokenBatch) -> Tensor:
    """One number of each sequence beside each of its tokens [N, T, 1]; 1 beside filling."""
    beside_NT = torch.ones(batch.tokens.shape, dtype=torch.float32, device=value_B.device)
    if layout.packs:
        beside_NT[0, : sum(lengths)] = (
            value_B.flatten()
            .float()
            .repeat_interleave(torch.tensor(lengths, device=value_B.device))
        )
    else:
        beside_NT[: len(lengths)] = value_B.flatten().float().unsqueeze(1)
    return beside_NT.unsqueeze(-1)
