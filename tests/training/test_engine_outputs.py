"""Outputs of tokens, of one batch and of several."""

from dataclasses import replace

import pytest
import torch

from tests.training.test_engine import batch, engine
from titanrun.components.data.token_batch import TokenBatch
from titanrun.training.engine_outputs import mark_nonfinite_tokens


def test_only_tokens_of_the_loss_with_outputs_that_are_no_numbers_are_marked() -> None:
    given = TokenBatch.from_sequences(torch.arange(12).view(2, 6))
    given.loss_mask[1, 4] = False
    output = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    output[0, 1, 2], output[1, 0, 0], output[1, 4, 1] = torch.nan, torch.inf, torch.nan
    found = mark_nonfinite_tokens(output, given)
    assert found.isnan().nonzero().tolist() == [[0, 1], [1, 0]]
    assert found.nan_to_num(0.0).tolist() == [[0.0] * 5] * 2


@pytest.mark.parametrize("rows_per_batch", [3, 4])
def test_several_batches_have_the_loss_and_the_outputs_of_all_their_rows(
    rows_per_batch: int,
) -> None:
    trained, whole = engine(), batch(uneven=True)
    parts = whole.split(rows_per_batch)
    one, several = trained.evaluate_loss(whole), trained.evaluate_loss(parts)
    assert several.loss.item() == pytest.approx(one.loss.item(), rel=1e-6)
    assert several.valid_tokens.item() == one.valid_tokens.item()
    expected = trained.forward(whole, outputs=("logprobs", "logits"))
    for name, found in trained.forward(parts, outputs=("logprobs", "logits")).items():
        torch.testing.assert_close(found, expected[name])


def test_attention_gets_the_documents_of_every_batch_of_tokens() -> None:
    trained, given = engine(), batch()
    seen: list[TokenBatch] = []

    def count_first_half(one: TokenBatch) -> TokenBatch:
        seen.append(one)
        return replace(one, loss_mask=one.loss_mask & (torch.arange(12) < 6))

    trained.document_id_fn = count_first_half
    assert trained.evaluate_loss(given).valid_tokens.item() == 8 * 6
    assert trained.forward_backward(given.split(4)).valid_tokens.item() == 8 * 6
    assert [len(one.tokens) for one in seen] == [8, 4, 4]
