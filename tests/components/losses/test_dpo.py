"""The loss of pairs against the paper's formula in float64."""

import pytest
import torch

from titanrun.components.data.token_batch import PairBatch
from titanrun.components.losses.dpo import DPOLoss
from titanrun.components.losses.pair_logprobs import REFERENCE_LOGPROBS
from titanrun.components.losses.preference_config import DpoConfig


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (0.7, 0.0), (0.3, 0.2)])
def test_it_is_the_formula_of_the_paper(beta: float, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 12, 9, generator=generator, requires_grad=True)
    labels = torch.randint(9, (3, 12), generator=generator)
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3] * 3)
    counted = torch.rand(3, 12, generator=generator) < 0.6
    counted[:, [4, 8]] = False
    counted[:, 9:] = False
    # the last row fills a batch up and is no pair
    counted[2] = False
    reference = -torch.rand(3, 12, generator=generator) * 4
    batch = PairBatch(labels, labels, None, counted, {REFERENCE_LOGPROBS: reference}, documents)
    assert int(batch.num_valid_tokens()) == 2

    found = DPOLoss(DpoConfig(beta=beta, label_smoothing=smoothing))(logits, batch)
    found.backward()

    exact = logits.detach().double().requires_grad_()
    said = exact.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    total = torch.zeros((), dtype=torch.float64)
    for row in range(2):
        parts = [counted[row] & (documents[row] == number) for number in (0, 1)]
        policy, before = (
            [values[row][part].sum() for part in parts] for values in (said, reference)
        )
        margin = beta * ((policy[0] - before[0]) - (policy[1] - before[1]))
        total = (
            total
            - (1 - smoothing) * torch.log(torch.sigmoid(margin))
            - smoothing * torch.log(torch.sigmoid(-margin))
        )
    total.backward()
    assert float(found.detach()) == pytest.approx(float(total.detach()), rel=1e-6)
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)
