"""Loss of a run: which cross entropy `auto` is, and the number of its chunks."""

from typing import Any

from pydantic import ValidationError

from titanrun.components.losses.config import (
    CHUNKED_VOCABULARY,
    AutoCrossEntropyConfig,
    ChunkedCrossEntropyConfig,
    CrossEntropyConfig,
    LossConfig,
    compute_num_chunks,
)
from titanrun.config.base import change_fields, dump_config
from titanrun.config.types import AUTO
from titanrun.recipe.recipe import Recipe


def resolve_loss(recipe: Recipe, data: dict[str, Any]) -> None:
    """Set the loss in the recipe's plain data, whose model is resolved."""
    if not has_auto_fields(recipe.loss):
        return
    try:
        model = type(recipe.model).model_validate(data["model"])
    except ValidationError:
        return  # the whole recipe fails for the same reason, and reports where
    data["loss"] = dump_config(choose_loss(recipe.loss, change_fields(recipe, model=model)))


def has_auto_fields(loss: LossConfig) -> bool:
    """Return whether something about a loss follows from the rest of the recipe."""
    return isinstance(loss, AutoCrossEntropyConfig) or getattr(loss, "num_chunks", None) == AUTO


def choose_loss(loss: LossConfig, run: Recipe) -> LossConfig:
    """Return a written loss as it is in a run, whose model and batch are resolved."""
    if isinstance(loss, AutoCrossEntropyConfig):
        shared = {key: value for key, value in dump_config(loss).items() if key != "name"}
        chosen = ChunkedCrossEntropyConfig if should_chunk_loss(run) else CrossEntropyConfig
        loss = chosen.model_validate(shared)
    if isinstance(loss, ChunkedCrossEntropyConfig) and loss.num_chunks == AUTO:
        return change_fields(loss, num_chunks=choose_loss_chunks(run))
    return loss


def should_chunk_loss(run: Recipe) -> bool:
    """Return whether the head can compute the loss, and has so many outputs that it should.

    The device may be an accelerator unless it is `cpu`.
    """
    model = run.model
    return (
        run.device != "cpu"
        and run.rl is None
        and model.modality == "tokens"
        and model.output_dim() >= CHUNKED_VOCABULARY
        and model.mtp_depth() == 0
        and getattr(model, "logit_soft_cap", None) is None
        and "a loss in chunks" not in model.unsupported_features
        and run.parallelism.pipeline_parallel_degree == 1
    )


def choose_loss_chunks(run: Recipe) -> int:
    """Return the number of chunks of the loss for the tokens of a rank's forward pass."""
    tokens = run.training.local_batch_size * run.training.seq_len
    return compute_num_chunks(
        tokens // run.parallelism.context_parallel_degree,
        dim=run.model.model_dim(),
        vocab_size=run.model.output_dim(),
    )
