"""Corrections of policy losses: limits of the importance ratio beside the algorithm's clipping.

Shapes: B sequences, T tokens per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch
from titanrun.rl.algorithms.config import LengthNorm
from titanrun.rl.algorithms.correction_config import BoundsConfig, CorrectionConfig, TruncatedConfig
from titanrun.training.engine import Engine

# a ratio of e^20 says as much as any larger one, and sums over tokens stay finite
LOG_RATIO_BOUND = 20.0
# divisor of a ratio of 0
TINY = 1e-30


def compute_importance_ratio(log_ratio_BT: Tensor) -> Tensor:
    """Return p(policy) / p(generator) of each token [B, T], without gradient."""
    return log_ratio_BT.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


class NoCorrection:
    """Correction that changes nothing, and base class of the others."""

    def __init__(self, config: CorrectionConfig) -> None:
        self.config = config

    def compute_factor(self, ratio_BT: Tensor, *, is_in_loss: bool) -> Tensor | None:
        """Return the factor of each token's loss [B, T], None for 1.

        Args:
            ratio_BT: ratio of policy to generator, without gradient.
            is_in_loss: whether the loss already is a multiple of this ratio.
        """
        return None

    def find_changed(self, ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Return the mask [B, T] of the tokens whose loss it changes."""
        return torch.zeros_like(ratio_BT, dtype=torch.bool)


class TruncatedCorrection(NoCorrection):
    """Correction after which no token weighs more than `max`."""

    config: TruncatedConfig

    def compute_factor(self, ratio_BT: Tensor, *, is_in_loss: bool) -> Tensor | None:
        """Return min(ratio, max), divided by the ratio if the loss has it."""
        bounded_BT = ratio_BT.clamp(max=self.config.max)
        return bounded_BT / ratio_BT.clamp(min=TINY) if is_in_loss else bounded_BT

    def find_changed(self, ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Return the mask [B, T] of the tokens whose ratio is above the limit."""
        return ratio_BT > self.config.max


class TokenMask(NoCorrection):
    """Correction that drops tokens. `DropTokens` has given them the weight 0."""

    config: BoundsConfig

    def find_kept(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Return the mask [B, T] of the tokens that stay in the loss."""
        return self._is_within_bounds(compute_importance_ratio(log_ratio_BT))

    def find_changed(self, ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Return the mask [B, T] of the dropped tokens."""
        if batch.weights is None:
            return super().find_changed(ratio_BT, batch)
        return batch.weights == 0

    def _is_within_bounds(self, ratio: Tensor) -> Tensor:
        return (ratio >= self.config.low) & (ratio <= self.config.high)


class SequenceMask(TokenMask):
    """Correction that drops whole completions."""

    def find_kept(self, log_ratio_BT: Tensor, batch: TokenBatch) -> Tensor:
        """Return the mask [B, T] of the tokens of completions that stay in the loss."""
        valid_BT, sequences_BT = batch.label_mask(), batch.extra["sequences"].long()
        counts_BT = count_in_sequence(sequences_BT, valid_BT.to(log_ratio_BT.dtype))
        sums_BT = count_in_sequence(sequences_BT, log_ratio_BT.masked_fill(~valid_BT, 0.0))
        return self._is_within_bounds(compute_importance_ratio(sums_BT / counts_BT.clamp(min=1)))


def count_in_sequence(sequences_BT: Tensor, values_BT: Tensor) -> Tensor:
    """Return for each token the sum of the values of all tokens of its completion [B, T].

    The batch holds whole completions.
    """
    _, index_BT = sequences_BT.unique(return_inverse=True)
    sums = values_BT.new_zeros(int(index_BT.max()) + 1)
    return sums.index_add(0, index_BT.flatten(), values_BT.flatten())[index_BT]


@dataclass(frozen=True, slots=True)
class DropTokens:
    """Callable that gives the tokens of a step that a correction drops the weight 0.

    The loss of the others is what it would be if the dropped tokens had never counted: they are in
    no denominator either. It takes a forward pass of the policy, before the one with gradients.

    Args:
        correction: tells which tokens stay.
        length_norm: normalization by length, with whose weights the batches come.
        engine: the policy's engine.
        temperature: of the generator.
    """

    correction: TokenMask
    length_norm: LengthNorm
    engine: Engine
    temperature: float

    def __call__(self, batches: Sequence[TokenBatch]) -> list[TokenBatch]:
        """Return this rank's batches of a step with weights. Collective."""
        kept = [self._find_kept(batch) for batch in batches]
        counts = sum(count_kept(*pair) for pair in zip(batches, kept, strict=True))
        assert isinstance(counts, Tensor), "a step has batches"
        if self.engine.meshes is not None:
            on_device = counts.to(self.engine.device)
            counts = self.engine.meshes.all_reduce_sum_(on_device, "loss").to(counts.device)
        more_tokens, more_sequences = (counts[0] / counts[1].clamp(min=1)).tolist()
        return [
            self._weigh(batch, kept_BT, more_tokens, more_sequences)
            for batch, kept_BT in zip(batches, kept, strict=True)
        ]

    def _find_kept(self, batch: TokenBatch) -> Tensor:
        found = self.engine.forward(batch, temperature=self.temperature)["logprobs"]
        valid_BT = batch.label_mask()
        difference_BT = found.to(batch.tokens.device) - batch.extra["logprobs"]
        log_ratio_BT = difference_BT.masked_fill(~valid_BT, 0.0)
        return self.correction.find_kept(log_ratio_BT, batch) & valid_BT

    def _weigh(
        self, batch: TokenBatch, kept_BT: Tensor, more_tokens: float, more_sequences: float
    ) -> TokenBatch:
        """Set the weights of the tokens, and follow the denominators of the length normalization.

        Args:
            batch: the batch.
            kept_BT: mask of the tokens that stay.
            more_tokens: tokens of all ranks for each one that stays. The weights of those that stay
                add up to the number of all, which the loss is divided by.
            more_sequences: the same of completions.
        """
        weight_BT = batch.extra["weight"]
        if self.length_norm != "token_mean" and more_tokens:
            weight_BT = weight_BT * (more_sequences / more_tokens)
        if self.length_norm == "sequence_mean":
            sequences_BT = batch.extra["sequences"]
            own_BT, own_kept_BT = (
                count_in_sequence(sequences_BT, mask_BT.to(weight_BT.dtype))
                for mask_BT in (batch.label_mask(), kept_BT)
            )
            weight_BT = weight_BT * own_BT / own_kept_BT.clamp(min=1)
        return replace(
            batch, weights=kept_BT * more_tokens, extra={**batch.extra, "weight": weight_BT}
        )


def count_kept(batch: TokenBatch, kept_BT: Tensor) -> Tensor:
    """Count tokens and completions, [2, 2]: all of them, and what is kept."""
    sequences_BT = batch.extra["sequences"]
    rows = [
        torch.stack([mask_BT.sum(), torch.tensor(len(sequences_BT[mask_BT].unique()))])
        for mask_BT in (batch.label_mask().cpu(), kept_BT.cpu())
    ]
    return torch.stack(rows).double()
