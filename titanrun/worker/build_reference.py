"""What a loss compares the model with: the model as it was before the run.

With adapters that is the model without them; else it is a second one, which nothing trains.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from titanrun.components.converters.lora import Adapter
from titanrun.components.converters.lora_experts import ExpertAdapters
from titanrun.components.data.batch import PairBatch, TokenBatch
from titanrun.components.losses.dpo import REFERENCE
from titanrun.distributed.agreement import Ranks
from titanrun.recipe.adapters import lora_of
from titanrun.recipe.recipe import Recipe
from titanrun.training.engine import Engine
from titanrun.worker.weights import load_initial_weights

Prepare = Callable[[TokenBatch], TokenBatch]


@dataclass(frozen=True, slots=True)
class Reference:
    """Puts into each batch what the reference makes of it.

    Args:
        engine: of the reference.
        is_adapted: whether it is the engine that is trained, whose adapters are to be left out.
    """

    engine: Engine
    is_adapted: bool

    def __call__(self, batch: TokenBatch) -> TokenBatch:
        """The batch of pairs with the log-probability of each label by the reference. Every rank must call it as often as the others."""
        with (
            without_adapters(self.engine.model) if self.is_adapted else nullcontext(),
            torch.no_grad(),
        ):
            logprobs_BT = self.engine.forward(batch)["logprobs"]
        extra = {**batch.extra, REFERENCE: logprobs_BT.to(batch.tokens.device)}
        return PairBatch(
            batch.tokens, batch.labels, batch.positions, batch.loss_mask, extra, batch.documents
        )


def build_reference(
    recipe: Recipe, engine: Engine, ranks: Ranks, build: Callable[[], Engine]
) -> Prepare:
    """What puts into each batch what the loss needs of the reference; leaves it alone where it needs nothing.

    Args:
        recipe: of the run.
        engine: what the run trains, with its first weights or with those that it goes on from.
        ranks: who loads together.
        build: another engine of the same layout with the weights that the seed draws.
    """
    if not recipe.loss.needs_reference:
        return unchanged
    if lora_of(recipe) is not None:
        return Reference(engine, is_adapted=True)
    frozen = build()
    load_initial_weights(
        recipe.checkpoint,
        model_config=recipe.model,
        engine=frozen,
        ranks=ranks,
        seed=recipe.debug.seed,
    )
    frozen.model.requires_grad_(False)
    return Reference(frozen, is_adapted=False)


def unchanged(batch: TokenBatch) -> TokenBatch:
    """The batch itself."""
    return batch


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as it is without its adapters within the block."""
    adapters = [
        module for module in model.modules() if isinstance(module, Adapter | ExpertAdapters)
    ]
    scales = [adapter.scale for adapter in adapters]
    for adapter in adapters:
        adapter.scale = 0.0
    try:
        yield
    finally:
        for adapter, scale in zip(adapters, scales, strict=True):
            adapter.scale = scale
