"""Outputs of tokens."""

import torch

from titanrun.components.data.token_batch import TokenBatch
from titanrun.training.engine_outputs import mark_nonfinite_tokens


def test_only_tokens_of_the_loss_with_outputs_that_are_no_numbers_are_marked() -> None:
    batch = TokenBatch.from_sequences(torch.arange(12).view(2, 6))
    batch.loss_mask[1, 4] = False
    output = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    output[0, 1, 2], output[1, 0, 0], output[1, 4, 1] = torch.nan, torch.inf, torch.nan
    found = mark_nonfinite_tokens(output, batch)
    assert found.isnan().nonzero().tolist() == [[0, 1], [1, 0]]
    assert found.nan_to_num(0.0).tolist() == [[0.0] * 5] * 2
