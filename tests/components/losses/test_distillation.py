"""Divergences from a teacher: against values worked by hand, torch's own distributions in float64,
and trl's function."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses import distillation
from titanrun.components.losses.distillation import (
    TEACHER_LOGITS,
    compute_divergence,
    compute_taught_divergence,
)
from titanrun.components.losses.distillation_config import DistillationConfig

# of student (1, 0, -1) and teacher (0, 1, 0)
WORKED = {0.0: 0.432278, 0.5: 0.108578, 1.0: 0.474321}
BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
TEMPERATURES = (1.0, 0.7, 3.0)
ROWS, TOKENS, VOCABULARY = 2, 7, 40


def draw_logits(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, TOKENS, VOCABULARY)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def build_batch() -> TokenBatch:
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(2))
    batch = TokenBatch.from_sequences(ids)
    batch.loss_mask[0, :4] = False
    batch.loss_mask[1, 2] = False
    batch.extra[TEACHER_LOGITS] = draw_logits(1, torch.float32)
    return batch


def compute_loss(batch: TokenBatch, logits: Tensor, **fields: float) -> Tensor:
    config = DistillationConfig.model_validate({"teacher": "unused", **fields})
    loss: Tensor = config.load_builder()(config)(logits, batch)
    return loss


def compute_expected(student: Tensor, teacher: Tensor, beta: float, temperature: float) -> Tensor:
    """The divergence of each token by torch's categorical distributions."""
    ours, theirs = (Categorical(logits=logits / temperature) for logits in (student, teacher))
    if beta == 0:
        return kl_divergence(theirs, ours)
    if beta == 1:
        return kl_divergence(ours, theirs)
    mixture = Categorical(probs=(1 - beta) * ours.probs + beta * theirs.probs)
    return beta * kl_divergence(theirs, mixture) + (1 - beta) * kl_divergence(ours, mixture)


@pytest.mark.parametrize(("beta", "expected"), WORKED.items())
def test_it_has_the_values_worked_by_hand(beta: float, expected: float) -> None:
    student, teacher = torch.tensor([[[1.0, 0, -1]]]), torch.tensor([[[0.0, 1, 0]]])
    found = compute_divergence(student, teacher, beta=beta, temperature=1.0)
    assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("chunk", [512, 3])
def test_values_and_gradients_are_those_of_the_formula(
    beta: float, temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation, "CHUNK_TOKENS", chunk)
    student, again = (draw_logits(0).requires_grad_() for _ in range(2))
    found = compute_divergence(student, draw_logits(1), beta=beta, temperature=temperature)
    expected = compute_expected(again, draw_logits(1), beta, temperature)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = draw_logits(3)[..., 0]
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(student.grad, again.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("beta", "expected"), WORKED.items())
def test_all_tokens_of_a_teacher_have_the_values_worked_by_hand(
    beta: float, expected: float
) -> None:
    student, teacher = torch.tensor([[[1.0, 0, -1]]]), torch.tensor([[[0.0, 1, 0]]])
    logprobs, ids = teacher.log_softmax(-1).sort(descending=True)
    found = compute_taught_divergence(student, ids, logprobs, beta=beta, temperature=1.0)
    assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("chunk", "top_k"), [(512, 5), (3, 20)])
def test_the_likeliest_tokens_and_the_rest_have_the_divergence_of_the_formula(
    beta: float, temperature: float, chunk: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's categorical distributions of K + 1 classes, in float64."""
    monkeypatch.setattr(distillation, "CHUNK_TOKENS", chunk)
    student, again = (draw_logits(0).requires_grad_() for _ in range(2))
    taught, ids = (draw_logits(1) / temperature).log_softmax(-1).topk(top_k)
    found = compute_taught_divergence(student, ids, taught, beta=beta, temperature=temperature)

    def merge_rest(logits: Tensor) -> Tensor:
        probabilities = Categorical(logits=logits / temperature).probs
        chosen = probabilities.gather(-1, ids)
        rest = probabilities.sum(-1) - chosen.sum(-1)
        return torch.cat((chosen, rest[..., None]), -1).log()

    expected = compute_expected(merge_rest(again), merge_rest(draw_logits(1)), beta, 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    weights = draw_logits(3)[..., 0]
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(student.grad, again.grad, rtol=1e-8, atol=1e-11)


def test_logits_in_bf16_are_compared_in_fp32() -> None:
    student, teacher = (draw_logits(seed, torch.bfloat16) for seed in (0, 1))
    found = compute_divergence(student, teacher, beta=0.5, temperature=1.0)
    expected = compute_expected(student.double(), teacher.double(), 0.5, 1.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_only_tokens_in_the_loss_count_and_their_weights_do() -> None:
    batch, logits = build_batch(), draw_logits(0, torch.float32)
    expected = compute_expected(logits.double(), draw_logits(1, torch.float32).double(), 1.0, 1.0)
    mask = batch.label_mask()
    assert compute_loss(batch, logits).item() == pytest.approx(float(expected[mask].sum()), 1e-6)
    weights = torch.linspace(0.1, 2.0, ROWS * TOKENS).reshape(ROWS, TOKENS)
    weighed = TokenBatch(
        batch.tokens, batch.labels, None, batch.loss_mask, batch.extra, None, weights
    )
    assert compute_loss(weighed, logits).item() == pytest.approx(
        float((expected * weights)[mask].sum()), 1e-6
    )


def test_the_data_s_own_tokens_count_with_their_weight() -> None:
    batch, logits = build_batch(), draw_logits(0, torch.float32).requires_grad_()
    labels = batch.labels.masked_fill(~batch.loss_mask, -100)
    cross_entropy = torch.nn.functional.cross_entropy(
        logits.detach().double().flatten(0, 1), labels.flatten(), reduction="sum"
    )
    loss = compute_loss(batch, logits, hard_weight=0.3, temperature=2.0)
    without = compute_loss(batch, logits.detach(), temperature=2.0)
    assert (loss - without).item() == pytest.approx(0.3 * float(cross_entropy), rel=1e-5)
    loss.backward()
    again = draw_logits(0, torch.float32).requires_grad_()
    (
        compute_loss(batch, again, temperature=2.0)
        + 0.3
        * torch.nn.functional.cross_entropy(again.flatten(0, 1), labels.flatten(), reduction="sum")
    ).backward()
    torch.testing.assert_close(logits.grad, again.grad, rtol=1e-5, atol=1e-7)


def test_equal_predictions_have_no_divergence() -> None:
    logits = draw_logits(0).requires_grad_()
    for beta in BETAS:
        found = compute_divergence(logits, logits.detach(), beta=beta, temperature=1.5)
        assert found.abs().max() < 1e-14
        found.sum().backward()
    assert logits.grad is not None and logits.grad.abs().max() < 1e-14


@pytest.mark.oracles
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_it_is_what_trl_computes_in_float64(
    beta: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gkd import GKDTrainer

    student, again = (draw_logits(0).requires_grad_() for _ in range(2))
    teacher, batch = draw_logits(1), build_batch()
    labels = batch.labels.masked_fill(~batch.loss_mask, -100)
    expected = GKDTrainer.generalized_jsd_loss(
        again, teacher, labels=labels, beta=beta, temperature=temperature
    )
    found = compute_divergence(student, teacher, beta=beta, temperature=temperature)
    mean = found[batch.label_mask()].mean()
    assert mean.item() == pytest.approx(expected.item(), rel=1e-12)
    mean.backward()
    expected.backward()
    torch.testing.assert_close(student.grad, again.grad, rtol=1e-10, atol=1e-13)
