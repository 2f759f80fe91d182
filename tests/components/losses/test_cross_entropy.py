import pytest
import torch

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.losses.config import CrossEntropyConfig, compute_num_chunks
from titanrun.components.losses.cross_entropy import CrossEntropyLoss

VOCABULARY = 11


def batch(*, ignored: bool = False, masked: bool = False) -> TokenBatch:
    rows = torch.randint(VOCABULARY, (3, 6), generator=torch.Generator().manual_seed(0))
    made = TokenBatch.from_sequences(rows)
    if ignored:
        made.labels[0, :2] = IGNORE_INDEX
    if masked:
        made.loss_mask[2] = False
    return made


def logits(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (
        torch.randn(3, 5, VOCABULARY, generator=torch.Generator().manual_seed(1))
        .to(dtype)
        .requires_grad_()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "holes", [{}, {"ignored": True}, {"masked": True}, {"ignored": True, "masked": True}]
)
def test_the_loss_is_the_sum_over_valid_tokens_in_fp32(
    dtype: torch.dtype, holes: dict[str, bool]
) -> None:
    given, made = logits(dtype), batch(**holes)
    loss = CrossEntropyLoss(CrossEntropyConfig())(given, made)
    logprobs = given.detach().double().log_softmax(-1)
    expected = -sum(
        logprobs[row, column, made.labels[row, column]]
        for row in range(3)
        for column in range(5)
        if made.label_mask()[row, column]
    )
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(float(expected), rel=1e-6)


def test_tokens_that_do_not_count_have_no_gradient() -> None:
    given = logits()
    CrossEntropyLoss(CrossEntropyConfig())(given, batch(ignored=True, masked=True)).backward()
    assert given.grad is not None
    touched = given.grad.abs().sum(-1) > 0
    assert torch.equal(touched, batch(ignored=True, masked=True).label_mask())


def test_a_batch_without_valid_tokens_sums_to_zero() -> None:
    made = batch()
    made.loss_mask[:] = False
    loss = CrossEntropyLoss(CrossEntropyConfig())(logits(), made)
    loss.backward()
    assert loss.item() == 0.0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_smoothing_is_torchs_and_the_z_loss_palms(smoothing: float, z_loss: float) -> None:
    given, reference, made = logits(), logits(), batch(ignored=True)
    valid = made.label_mask()
    plain = torch.nn.functional.cross_entropy(
        reference[valid].double(), made.labels[valid], reduction="sum", label_smoothing=smoothing
    )
    expected = plain + z_loss * torch.logsumexp(reference[valid].double(), -1).square().sum()
    expected.backward()
    loss = CrossEntropyLoss(CrossEntropyConfig(label_smoothing=smoothing, z_loss=z_loss))(
        given, made
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert given.grad is not None and reference.grad is not None
    torch.testing.assert_close(given.grad, reference.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "dim", "vocab_size", "each"),
    [
        # 2^round(log2(X D / V)) tokens: 32768 * 2048 / 128256 = 523, 8192 * 4096 / 128256 = 262
        (32_768, 2048, 128_256, 512),
        (8_192, 4096, 128_256, 512),
        (131_072, 4096, 128_256, 4096),
        (131_072, 4096, 32_000, 8192),
        (100, 256, 2048, 100),
    ],
)
def test_the_logits_of_a_chunk_weigh_what_the_stream_does(
    tokens: int, dim: int, vocab_size: int, each: int
) -> None:
    assert compute_num_chunks(tokens, dim=dim, vocab_size=vocab_size) == -(-tokens // each)
