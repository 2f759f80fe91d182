"""What losses of preferences read beside tokens: a reference, counts and estimates of a step.

Shapes: B sequences, T tokens of a sequence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.components.converters.lora import LoraMixin
from titanrun.components.converters.lora_experts import ExpertLoraMixin
from titanrun.components.data.mismatched_replies import build_mismatched_batches
from titanrun.components.data.token_batch import PairBatch, TokenBatch
from titanrun.components.losses.config import LossConfig
from titanrun.components.losses.kto import DESIRABLE, KL_ESTIMATE
from titanrun.components.losses.pair_logprobs import NLL_SCALE, REFERENCE_LOGPROBS, get_nll_mask
from titanrun.components.losses.preference_config import KtoConfig
from titanrun.training.engine import Engine

PrepareBatchesFn = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class FrozenReference:
    """Model as it was before the run.

    Args:
        engine: the reference's engine.
        should_disable_adapters: whether this is the trained engine, to be used without adapters.
    """

    engine: Engine
    should_disable_adapters: bool

    def compute_logprobs(self, batch: TokenBatch) -> Tensor:
        """Return the log-probability of each valid label, 0 for all others, [B, T].

        Collective: all ranks must call this equally often.
        """
        with (
            disable_adapters(self.engine.model) if self.should_disable_adapters else nullcontext(),
            torch.no_grad(),
        ):
            return self.engine.forward(batch)["logprobs"].to(batch.tokens.device)


@dataclass(slots=True)
class PreferenceInputs:
    """Function that adds to all batches of a step what a loss of preferences reads.

    Validation passes batches one by one, and which sequences are in one depends on the ranks. So
    that its loss does not, values over a whole step are then replaced: a cross entropy is the mean
    over the tokens of each sequence, and the divergence that of the last training step.

    Args:
        loss: config of the loss.
        engine: the trained engine.
        reference: the model before the run, None if the loss has no reference.
    """

    loss: LossConfig
    engine: Engine
    reference: FrozenReference | None
    _last_estimate: Tensor | float = 0.0

    def __call__(self, batches: Sequence[TokenBatch]) -> list[TokenBatch]:
        """Return this rank's batches of a step, each sequence of which counts once.

        Collective: all ranks must call this equally often.
        """
        found: list[TokenBatch] = [
            count_sequences(self.engine.document_id_fn(batch)) for batch in batches
        ]
        if self.reference is not None:
            found = [
                add_values(batch, {REFERENCE_LOGPROBS: self.reference.compute_logprobs(batch)})
                for batch in found
            ]
        if self.loss.nll_tokens is not None:
            found = self._add_nll_scale(found, includes_prompt=self.loss.nll_tokens == "all")
        if isinstance(self.loss, KtoConfig):
            if self.loss.variant == "kto" and self.engine.model.training:
                self._last_estimate = self._estimate_divergence(found)
            found = [add_labels(batch, self._last_estimate) for batch in found]
        return found

    def _add_nll_scale(
        self, batches: Sequence[TokenBatch], *, includes_prompt: bool
    ) -> list[TokenBatch]:
        """Add the number of pairs of the step per token of their cross entropy."""
        if not self.engine.model.training:
            return [
                add_value(
                    batch,
                    NLL_SCALE,
                    1
                    / get_nll_mask(batch, includes_prompt=includes_prompt)
                    .sum(1, keepdim=True)
                    .clamp(min=1),
                )
                for batch in batches
            ]
        own = torch.stack(
            [
                torch.stack(
                    [
                        batch.num_valid_tokens(),
                        get_nll_mask(batch, includes_prompt=includes_prompt).sum(),
                    ]
                )
                for batch in batches
            ]
        ).sum(0)
        pairs, tokens = self._sum_over_ranks(own.double())
        return [add_value(batch, NLL_SCALE, pairs / tokens.clamp(min=1)) for batch in batches]

    def _estimate_divergence(self, batches: Sequence[TokenBatch]) -> Tensor:
        """Estimate how far the model is from its reference, on replies to other prompts.

        The result is the mean over the step's sequences of all ranks, at least 0.
        """
        assert self.reference is not None, "KTO has a reference"
        totals = []
        for batch in build_mismatched_batches(
            batches, group=self.engine.loss_group, device=self.engine.device
        ):
            policy_BT = self.engine.forward(batch)["logprobs"].to(batch.tokens.device)
            gained_BT = policy_BT - self.reference.compute_logprobs(batch)
            count = batch.label_mask().any(1).sum()
            totals.append(torch.stack([gained_BT.sum().double(), count.double()]))
        gained, count = self._sum_over_ranks(torch.stack(totals).sum(0))
        mean: Tensor = gained / count.clamp(min=1)
        return mean.clamp(min=0)

    def _sum_over_ranks(self, own: Tensor) -> Tensor:
        """Sum values over the ranks with different sequences."""
        meshes, device = self.engine.meshes, own.device
        if meshes is None:
            return own
        # Apple's GPUs have no float64, and no meshes either
        return meshes.all_reduce_sum_(own.to(self.engine.device), "loss").to(device)


def count_sequences(batch: TokenBatch) -> PairBatch:
    """Return the same batch, in which each sequence counts once."""
    return PairBatch(**{field.name: getattr(batch, field.name) for field in fields(batch)})


def add_value(batch: TokenBatch, name: str, value: Tensor | float) -> TokenBatch:
    """Add an fp32 value of each sequence, or one for all, to a batch."""
    column_B1 = torch.ones(len(batch.tokens), 1, device=batch.tokens.device) * value
    return add_values(batch, {name: column_B1.float()})


def add_values(batch: TokenBatch, values: dict[str, Tensor]) -> TokenBatch:
    """Add values of tokens or sequences to a batch."""
    return replace(batch, extra={**batch.extra, **values})


def add_labels(batch: TokenBatch, kl_estimate: Tensor | float) -> TokenBatch:
    """Add whether replies are desirable, which their tokens say, and the estimate of KTO."""
    assert batch.weights is not None, "labelled data has a label of each token"
    desirable_B1 = (batch.weights > 0).logical_and(batch.label_mask()).any(1, keepdim=True)
    labelled = replace(add_values(batch, {DESIRABLE: desirable_B1}), weights=None)
    return add_value(labelled, KL_ESTIMATE, kl_estimate)


@contextmanager
def disable_adapters(model: nn.Module) -> Iterator[None]:
    """Disable the adapters of a model within the block."""
    adapters = [
        module for module in model.modules() if isinstance(module, LoraMixin | ExpertLoraMixin)
    ]
    scales = [adapter.scale for adapter in adapters]
    for adapter in adapters:
        adapter.scale = 0.0
    try:
        yield
    finally:
        for adapter, scale in zip(adapters, scales, strict=True):
            adapter.scale = scale
