"""Accuracy of the likeliest tokens, against the formula of trl 1.16's SFTTrainer."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.training.test_engine import Bigram, batch, engine
from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.distributed.chunked_loss import ChunkedLMHead
from titanrun.distributed.head_loss import HeadLossOptions, compute_logit_gradients
from titanrun.training.engine import Engine
from titanrun.training.runners.chunked_forward_backward import ChunkedLossForwardBackward


def compute_by_trl(logits_BTV: Tensor, labels_BT: Tensor) -> list[int]:
    """Return trl's num_correct and num_valid, whose quotient is its mean_token_accuracy."""
    label_mask_BT = labels_BT != -100
    is_top1_BT = (logits_BTV.argmax(dim=-1) == labels_BT) & label_mask_BT
    return [int(is_top1_BT.sum()), int(label_mask_BT.sum())]


def make_learnable(given: TokenBatch, model: torch.nn.Module) -> TokenBatch:
    """Make half of the labels those that the model finds likeliest."""
    labels = given.labels.clone()
    labels[::2] = (
        model(given.tokens)[::2].argmax(-1).where(labels[::2] != IGNORE_INDEX, labels[::2])
    )
    return replace(given, labels=labels)


def compute_in_chunks(trained: Engine, *, is_fused: bool) -> None:
    """Make the engine compute the loss in chunks of the head."""
    options = HeadLossOptions(5, 0.0, 0.0, compute_logit_gradients) if is_fused else None
    head = ChunkedLMHead(
        trained.model.get_submodule("head"), 5, needs_full_logits=False, cross_entropy=options
    )
    trained.runner = ChunkedLossForwardBackward(
        trained.model, trained.runner.loss, trained.runner.weights, head
    )


@pytest.mark.parametrize("passes", ["whole", "chunks", "fused chunks"])
def test_accuracy_is_that_of_trl(passes: str) -> None:
    trained = engine(model=Bigram())
    given = make_learnable(batch(uneven=True), trained.model)
    if passes != "whole":
        compute_in_chunks(trained, is_fused=passes == "fused chunks")
    labels = given.labels.where(given.loss_mask, -100)
    right, counted = compute_by_trl(trained.model(given.tokens), labels)
    assert 10 < right < counted - 10
    loss = trained.evaluate_loss(given).loss
    output = trained.evaluate_loss(given.split(3), counts_accuracy=True)
    assert output.accuracy_counts is not None
    assert output.accuracy_counts.tolist() == [right, counted]
    torch.testing.assert_close(output.loss, loss)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_labels_without_weight_do_not_count_and_others_count_once(is_chunked: bool) -> None:
    trained = engine(model=Bigram())
    given = make_learnable(batch(), trained.model)
    if is_chunked:
        compute_in_chunks(trained, is_fused=True)
    weights = torch.full(given.labels.shape, 2.5)
    weights[:, 5:] = 0
    output = trained.evaluate_loss(replace(given, weights=weights), counts_accuracy=True)
    expected = compute_by_trl(trained.model(given.tokens)[:, :5], given.labels[:, :5])
    assert output.accuracy_counts is not None and output.accuracy_counts.tolist() == expected


def test_nothing_is_counted_unless_asked() -> None:
    assert engine().evaluate_loss(batch()).accuracy_counts is None
