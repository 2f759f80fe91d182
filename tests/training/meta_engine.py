"""Engines on torch's meta device, which stands for an accelerator: it has shapes but no values."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from titanrun.components.data.config import TinyImagesConfig
from titanrun.components.data.document_ids import attach_document_starts
from titanrun.components.data.image_dataset import build_tiny_image_dataset
from titanrun.components.data.indexed_dataset import SampleRequest
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule
from titanrun.distributed.precision import get_precision
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.models.flux.collator import FluxBatch, FluxCollator
from titanrun.models.flux.config import FluxConfig
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.training.engine import Engine
from titanrun.training.nonfinite import NonFiniteGuard
from titanrun.worker.build.build_model import build_forward_backward, build_loss, build_model
from titanrun.worker.build.build_parallelism import ParallelizedModel

META = torch.device("meta")
IMAGE_SIZE = 32


def resolve_text(folder: Path, text: str) -> Recipe:
    """The run of a recipe whose sections are given, without version and dataset."""
    path = folder / "recipe.yaml"
    path.write_text(f"version: 1\n{text}\n")
    return resolve_recipe(str(path), [], environment={}).run


def build_meta_engine(recipe: Recipe, prepare: Callable[[nn.Module], None] | None = None) -> Engine:
    """The engine of a run on the meta device, with working weights.

    Args:
        recipe: the run.
        prepare: changes the model before anything refers to its weights.
    """
    precision = get_precision(recipe.training.dtype, recipe.training.mixed_precision_param)
    model = build_model(recipe, precision)
    if prepare is not None:
        prepare(model)
    assert {parameter.device for parameter in model.parameters()} == {META}
    config, weights, loss = recipe.optimizer, WorkingWeights(model, precision), build_loss(recipe)
    return Engine(
        model,
        config.load_builder()(config, parameters=list(model.named_parameters())),
        WarmupStableDecaySchedule(WarmupStableDecayConfig(total_steps=10, warmup_steps=2)),
        loss,
        device=META,
        working_weights=weights,
        max_norm=1.0,
        runner=build_forward_backward(
            recipe, model, ParallelizedModel(precision), loss, weights, device=META, meshes=None
        ),
    )


def draw_batch(recipe: Recipe, *, rows: int = 2) -> Any:
    """A batch for the run, on the CPU, where the data loader makes it."""
    if recipe.model.name == "flux":
        return draw_image_batch(recipe, rows)
    tokens = torch.randint(2000, (rows, recipe.training.seq_len + 1))
    batch = TokenBatch.from_sequences(tokens)
    attention = getattr(recipe.model, "attention", None)
    if getattr(attention, "mask", None) != "block_causal":
        return batch
    # about 6 documents in 128 tokens
    numbered = replace(batch, document_ids=(batch.tokens < 100).cumsum(1))
    return attach_document_starts(numbered) if attention.backend == "varlen" else numbered


def draw_image_batch(recipe: Recipe, rows: int) -> FluxBatch:
    """The tiny images with their captions, encoded."""
    images = build_tiny_image_dataset(
        TinyImagesConfig(image_size=IMAGE_SIZE),
        tokenizer=None,
        sample_length=recipe.training.seq_len + 1,
        cache_folder=Path(),
    )
    samples = np.stack([images[SampleRequest(index, 1000 + index)] for index in range(rows)])
    assert isinstance(recipe.model, FluxConfig)
    collator = FluxCollator(recipe.model, device=torch.device("cpu"), dtype=torch.float32)
    (batch,) = collator.collate_train(samples, rows)
    return batch


def train_step(engine: Engine, guard: NonFiniteGuard, step: int, batches: list[Any]) -> None:
    """One step as the loop of a run takes it."""
    out = engine.forward_backward(batches)
    engine.optim_step(
        should_update=lambda norm: guard.should_update(step, loss=out.loss_sum, grad_norm=norm)
    )
