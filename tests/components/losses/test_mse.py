import pytest
import torch

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.losses.config import MseConfig
from titanrun.components.losses.mse import MSELoss


@pytest.mark.parametrize("height", [1.0, 7.5])
def test_the_loss_is_torchs_squared_error_of_the_valid_tokens(height: float) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = TokenBatch.from_sequences(torch.randint(11, (3, 6), generator=generator))
    batch.labels[0, :2] = IGNORE_INDEX
    batch.loss_mask[2] = False
    logits = torch.randn(3, 5, 11, generator=generator, requires_grad=True)
    reference = logits.detach().double().requires_grad_()
    valid = batch.label_mask()
    targets = torch.nn.functional.one_hot(batch.labels.clamp(min=0), 11).double() * height
    expected = torch.nn.functional.mse_loss(reference[valid], targets[valid], reduction="sum") / 11
    expected.backward()
    loss = MSELoss(MseConfig(height=height))(logits, batch)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert logits.grad is not None and reference.grad is not None
    torch.testing.assert_close(logits.grad.double(), reference.grad, rtol=1e-5, atol=1e-6)
