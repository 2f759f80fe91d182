"""The head with its loss, and cross entropy, compiled too."""

import pytest
import torch
from torch import Tensor, nn

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig
from titanrun.components.losses.cross_entropy import CrossEntropyLoss
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions, compute_logit_gradients

TOKENS, VOCABULARY, WIDTH = 1024, 4096, 64


def draw_inputs(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The stream and the weight in bf16, and labels."""
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(TOKENS, WIDTH, generator=generator).bfloat16().to(device)
    weight = (0.2 * torch.randn(VOCABULARY, WIDTH, generator=generator)).bfloat16().to(device)
    return stream, weight, torch.randint(VOCABULARY, (TOKENS,), generator=generator).to(device)


@pytest.mark.parametrize("compiles", [False, True])
def test_head_loss_against_float64(compiles: bool, device: torch.device) -> None:
    stream, weight, labels = draw_inputs(device)
    given = [tensor.clone().requires_grad_() for tensor in (stream, weight)]
    scale = torch.tensor(1 / TOKENS, device=device)
    inner = compile_for(device, compute_logit_gradients) if compiles else compute_logit_gradients
    options = HeadLossOptions(8, 0.0, 0.0, inner)
    loss = HeadLoss.apply(*given, labels, torch.ones(TOKENS, device=device), scale, options)
    found = torch.autograd.grad(loss, given)
    exact = [tensor.double().requires_grad_() for tensor in (stream, weight)]
    whole = nn.functional.cross_entropy(exact[0] @ exact[1].T, labels, reduction="sum")
    wanted = torch.autograd.grad(whole / TOKENS, exact)
    torch.testing.assert_close(loss.double(), whole, rtol=1e-3, atol=0)
    for ours, truth in zip(found, wanted, strict=True):
        assert (ours.double() - truth).norm() <= 4e-3 * truth.norm()


def compile_for(device: torch.device, function: object) -> object:
    """The function compiled: with inductor on a GPU, where it writes Triton."""
    return torch.compile(function, backend="aot_eager" if device.type == "cpu" else "inductor")


@pytest.mark.gpu
def test_head_loss_holds_no_whole_logits(gpu: torch.device) -> None:
    """No CPU twin: a CPU counts no bytes; tests/distributed/test_head_loss.py has shapes."""
    tokens, vocabulary, width = 8192, 32768, 256
    stream = torch.randn(tokens, width, device=gpu, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(vocabulary, width, device=gpu, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocabulary, (tokens,), device=gpu)
    options = HeadLossOptions(16, 0.0, 0.0, compute_logit_gradients)
    ones, scale = torch.ones(tokens, device=gpu), torch.tensor(1.0, device=gpu)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    HeadLoss.apply(stream, weight, labels, ones, scale, options).backward()
    whole_logits_in_fp32 = tokens * vocabulary * 4
    assert torch.cuda.max_memory_allocated() - before < 0.35 * whole_logits_in_fp32


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "z_loss": 1e-3}], ids=["plain", "smoothed"]
)
def test_compiled_cross_entropy_equals_eager(
    options: dict[str, float], device: torch.device
) -> None:
    loss = CrossEntropyLoss(CrossEntropyConfig(**options))
    generator = torch.Generator().manual_seed(0)
    batch = TokenBatch.from_sequences(torch.randint(VOCABULARY, (2, 257), generator=generator))
    # the labels of a prompt do not count
    batch.loss_mask[0, :40] = False
    batch = batch.to(device)
    drawn = torch.randn(2, 256, VOCABULARY, generator=generator).bfloat16()
    logits = [(3 * drawn).to(device, copy=True).requires_grad_() for _ in range(2)]
    torch._dynamo.reset()
    eager, compiled = (
        each(given, batch)
        for each, given in zip((loss, compile_for(device, loss)), logits, strict=True)
    )
    assert compiled.dtype == torch.float32
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=0)
    slopes = [
        torch.autograd.grad(each / 472, given)[0]
        for each, given in zip((eager, compiled), logits, strict=True)
    ]
    assert slopes[0].dtype == slopes[1].dtype == torch.bfloat16
    # rounded once, in either
    torch.testing.assert_close(slopes[1], slopes[0], rtol=2**-7, atol=1e-9)
