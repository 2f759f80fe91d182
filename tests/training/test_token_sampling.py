"""Sampling of tokens: one function for text generation and for policies, against numpy in float64
and transformers' own filters."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.rl.algorithms.config import ReinforceConfig
from titanrun.rl.algorithms.policy_losses import PolicyGradientLoss
from titanrun.training.token_sampling import (
    SamplingParams,
    apply_top_k,
    apply_top_p,
    gather_token_logprobs,
    sample_tokens,
    scale_logits,
    uniform_noise,
)

TEMPERATURES = [5e-324, 1e-46, 1e-38, 1e-12, 9e-6, 1e-5, 1e-3, 0.3, 1.0, 7.0, 1e30]


def draw(count: int, **options: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of sequences, the noise of each, and the token that is sampled."""
    logits = torch.randn(count, 50, generator=torch.Generator().manual_seed(3)) * 4
    noise = uniform_noise([1], count)[0]
    tokens = sample_tokens(logits, noise, SamplingParams(**options))
    return logits.double().numpy(), noise.numpy(), tokens.numpy()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_temperature_draws_what_float64_draws(temperature: float) -> None:
    """Row A8 of the defect list: temperature 1e-38 gave token 0."""
    logits, noise, tokens = draw(500, temperature=temperature)
    with np.errstate(over="ignore"):
        weights = np.exp((logits - logits.max(1, keepdims=True)) / temperature)
    cumulative = weights.cumsum(1)
    expected = (cumulative > (noise * cumulative[:, -1])[:, None]).argmax(1)
    # a noise that falls onto the border between two tokens may go to either
    assert (tokens == expected).mean() > 0.99
    if temperature < 1e-4:
        assert (tokens == logits.argmax(1)).all()


@pytest.mark.parametrize("temperature", [0.0, *TEMPERATURES])
def test_log_probabilities_are_finite_and_those_of_the_trainer(temperature: float) -> None:
    """Row A8 of the defect list: temperature 1e-38 gave -inf and NaN."""
    logits = torch.randn(1, 6, 50, generator=torch.Generator().manual_seed(3)) * 4
    tokens = sample_tokens(
        logits[0], uniform_noise([1], 6)[0], SamplingParams(temperature=temperature)
    )
    found = gather_token_logprobs(scale_logits(logits[0], temperature), tokens)
    assert found.isfinite().all()
    seen: dict[str, torch.Tensor] = {}

    class Loss(PolicyGradientLoss):
        def token_loss(self, logprobs_BT: Any, ratio_BT: Any, batch: TokenBatch) -> Any:
            seen["logprobs"] = logprobs_BT[0]
            return logprobs_BT

    is_valid = torch.ones(1, 6, dtype=torch.bool)
    batch = TokenBatch(tokens[None], tokens[None], None, is_valid)
    batch.extra.update({"logprobs": found[None], "weight": is_valid.float()})
    logits.requires_grad_()
    loss = Loss(ReinforceConfig(), sampling_temperature=temperature)
    with StepMetrics(torch.device("cpu")).open():
        loss(logits, batch).backward()
    torch.testing.assert_close(seen["logprobs"].detach(), found)
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_temperatures_of_several_sequences_are_their_own() -> None:
    logits = torch.randn(3, 5)
    temperatures = torch.tensor([[1e-38], [0.5], [0.0]])
    expected = torch.stack([logits[0], logits[1] / 0.5, logits[2]])
    torch.testing.assert_close(scale_logits(logits, temperatures), expected)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 4),
        ({"top_k": 2}, 2),
        ({"top_p": 0.7}, 2),
        ({"top_p": 0.86}, 3),
        ({"top_k": 3, "top_p": 0.5}, 1),
    ],
)
def test_tokens_are_drawn_by_their_probability(options: dict[str, Any], kept: int) -> None:
    probabilities = torch.tensor([0.1, 0.5, 0.05, 0.35])
    count = 4000
    tokens = sample_tokens(
        probabilities.log().repeat(count, 1),
        uniform_noise([7], count)[0],
        SamplingParams(**options),
    )
    order = probabilities.argsort(descending=True)[:kept]
    shares = torch.bincount(tokens, minlength=4) / count
    expected = torch.zeros(4).index_put((order,), probabilities[order] / probabilities[order].sum())
    assert (shares - expected).abs().max() < 0.03


@pytest.mark.parametrize("top_k", [None, 1, 3, 49, 50, 99])
def test_the_likeliest_tokens_are_those_of_transformers(top_k: int | None) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(3))
    theirs = logits if top_k is None else TopKLogitsWarper(top_k)(None, logits)
    assert torch.equal(apply_top_k(logits, top_k), theirs)


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.7, 0.999, 1.0])
def test_the_tokens_of_a_probability_are_those_of_transformers(top_p: float) -> None:
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(3))
    assert torch.equal(apply_top_p(logits, top_p), TopPLogitsWarper(top_p)(None, logits))


def test_noise_depends_on_the_seed_alone() -> None:
    alone, more = uniform_noise([5], 3), uniform_noise([4, 5], 40)
    assert torch.equal(alone[0], more[1, :3]) and not torch.equal(more[0], more[1])
    # larger than what torch takes, if it were multiplied only
    assert len(set(SamplingParams(seed=2**62).get_sequence_seeds(3))) == 3
    uniform_noise(SamplingParams(seed=2**62).get_sequence_seeds(3), 1)
