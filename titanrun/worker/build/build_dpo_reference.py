"""Reference model of preference losses: the model as it was before the run.

With adapters this is the model without its adapters, else a second, frozen model.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from titanrun.components.converters.lora import LoraMixin
from titanrun.components.converters.lora_experts import ExpertLoraMixin
from titanrun.components.data.token_batch import PairBatch, TokenBatch
from titanrun.components.losses.dpo import REFERENCE_LOGPROBS
from titanrun.distributed.object_collectives import RankGroup
from titanrun.recipe.recipe import Recipe, find_lora_converter
from titanrun.training.engine import Engine
from titanrun.worker.weights.initial_weights import load_initial_weights

PrepareBatchFn = Callable[[TokenBatch], TokenBatch]


@dataclass(frozen=True, slots=True)
class DpoReferenceModel:
    """Callable that adds the reference's log-probabilities to batches.

    Args:
        engine: the reference's engine.
        should_disable_adapters: whether this is the trained engine, to be used without adapters.
    """

    engine: Engine
    should_disable_adapters: bool

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        """Return the batch of pairs with the reference's log-probability of each label.

        Collective: all ranks must call this equally often.
        """
        with (
            disable_adapters(self.engine.model) if self.should_disable_adapters else nullcontext(),
            torch.no_grad(),
        ):
            logprobs_BT = self.engine.forward(batch)["logprobs"]
        extra = {**batch.extra, REFERENCE_LOGPROBS: logprobs_BT.to(batch.tokens.device)}
        return PairBatch(
            batch.tokens, batch.labels, batch.positions, batch.loss_mask, extra, batch.document_ids
        )


def build_dpo_reference(
    recipe: Recipe, engine: Engine, ranks: RankGroup, build_engine_fn: Callable[[], Engine]
) -> PrepareBatchFn:
    """Build the function that adds reference values to batches if the loss needs them.

    Args:
        recipe: the recipe of the run.
        engine: the trained engine, with its initial or resumed weights.
        ranks: ranks that load together.
        build_engine_fn: builds another engine of the same layout with weights drawn from the seed.
    """
    if not recipe.loss.needs_reference:
        return return_batch
    if find_lora_converter(recipe) is not None:
        return DpoReferenceModel(engine, should_disable_adapters=True)
    frozen = build_engine_fn()
    load_initial_weights(
        recipe.checkpoint,
        model_config=recipe.model,
        engine=frozen,
        ranks=ranks,
        seed=recipe.debug.seed,
    )
    frozen.model.requires_grad_(False)
    return DpoReferenceModel(frozen, should_disable_adapters=False)


def return_batch(batch: TokenBatch) -> TokenBatch:
    """Return the batch unchanged."""
    return batch


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
