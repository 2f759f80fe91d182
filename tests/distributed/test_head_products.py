"""Products of an output head against float64, alone and split over ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from tests.distributed.gloo_ranks import call_on_ranks
from titanrun.components.converters.config import Fp32LmHeadConfig
from titanrun.components.converters.fp32_lm_head import PRODUCTS, Fp32Linear, convert
from titanrun.distributed.chunked_loss import ChunkedLMHead, LossCapture
from titanrun.distributed.head_loss import HeadLossOptions, compute_logit_gradients

ROWS, TOKENS, WIDTH, VOCABULARY = 2, 24, 32, 301
SETTINGS = [(0.0, 0.0), (0.1, 0.0), (0.2, 1e-2)]


def head_of(products: str, dtype: torch.dtype = torch.float32) -> Fp32Linear:
    """A converted head with drawn weights."""
    model: Any = nn.Module()
    model.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
    drawn = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(0)) * 0.5
    model.output.weight = nn.Parameter(drawn.to(dtype))
    convert(Fp32LmHeadConfig(products=products), model=model, shards=1)  # type: ignore[arg-type]
    assert isinstance(model.output, Fp32Linear)
    return model.output


def drawn_stream(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()


def drawn_labels() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=generator)
    return labels, torch.rand(ROWS, TOKENS, generator=generator).round(decimals=1)


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().double() - exact).norm() / exact.norm())


class Precisions(TorchDispatchMode):
    """Notes the precision of fp32 products for CUDA devices, and the dtypes of operands."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("mm", "addmm_"):
            precision = torch.backends.cuda.matmul.fp32_precision
            self.seen.append((precision, args[-1].dtype))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("products", "precision"), [("ieee", "ieee"), ("tf32", "tf32")])
def test_products_take_their_precision_forward_and_backward(products: str, precision: str) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    head = head_of(products)
    with Precisions() as noted:
        head(drawn_stream()).sum().backward()
    assert noted.seen == [(precision, torch.float32)] * 3
    assert torch.backends.cuda.matmul.fp32_precision == before
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("products", ["auto", "ieee", "tf32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_and_gradients_are_those_of_a_linear_module_in_fp32(
    products: str, dtype: torch.dtype
) -> None:
    head, stream = head_of(products, dtype), drawn_stream()
    slopes = torch.randn(ROWS, TOKENS, VOCABULARY, generator=torch.Generator().manual_seed(3))
    found = [head(stream), *torch.autograd.grad(head(stream), [stream, head.weight], slopes)]
    plain = nn.Linear(WIDTH, VOCABULARY, bias=False)
    plain.weight = nn.Parameter(head.weight.detach().float())
    whole = stream.detach().float().requires_grad_()
    logits = plain(whole)
    exact = [logits, *torch.autograd.grad(logits, [whole, plain.weight], slopes)]
    for ours, theirs, kept in zip(found, exact, (torch.float32, stream.dtype, dtype), strict=True):
        assert ours.dtype == kept
        torch.testing.assert_close(ours, theirs.to(kept), rtol=1e-6, atol=1e-6)


def test_bf16_operands_leave_logits_unrounded() -> None:
    head, stream = head_of("bfloat16"), drawn_stream()
    operand = head.weight.detach().bfloat16().double()
    logits = head(stream)
    exact = stream.detach().double() @ operand.T
    assert logits.dtype == torch.float32 and error(logits, exact) < 1e-6
    # as a head in bf16 rounds them
    assert error(exact.bfloat16(), exact) > 1e-3
    slopes = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    stream_grad, weight_grad = torch.autograd.grad(logits, [stream, head.weight], slopes)
    rounded = slopes.bfloat16().double()
    assert (
        error(weight_grad, rounded.flatten(0, 1).T @ stream.detach().double().flatten(0, 1)) < 1e-6
    )
    assert stream_grad.dtype == torch.bfloat16 and error(stream_grad, rounded @ operand) < 4e-3


def loss_by_formula(weight: Tensor, stream: Tensor, how: tuple[float, float]) -> list[Tensor]:
    """Loss and both gradients in float64 by torch's own cross entropy."""
    given = [tensor.detach().double().requires_grad_() for tensor in (stream, weight)]
    labels, weights = drawn_labels()
    logits = (given[0] @ given[1].T).flatten(0, 1)
    losses = cross_entropy(logits, labels.flatten(), reduction="none", label_smoothing=how[0])
    losses = losses + how[1] * logits.logsumexp(-1).square()
    loss = (losses * weights.flatten().double()).sum()
    return [loss.detach(), *torch.autograd.grad(loss / 7, given)]


def captured_loss(head: nn.Module, stream: Tensor, how: tuple[float, float]) -> list[Tensor]:
    """Loss and both gradients as a chunked head computes them."""
    options = HeadLossOptions(5, *how, compute_logit_gradients)
    wrapped = ChunkedLMHead(head, 5, needs_full_logits=False, cross_entropy=options)
    refuse: Any = lambda *_: pytest.fail("the head computes its gradients itself")  # noqa: E731
    capture = LossCapture(refuse, *drawn_labels(), torch.tensor(7.0))
    with wrapped.capture_loss(capture):
        loss = head(stream)
    loss.backward()
    assert capture.has_divided_gradients and stream.grad is not None
    weight: Any = head.weight
    return [loss.detach(), stream.grad, weight.grad]


@pytest.mark.parametrize("products", PRODUCTS)
def test_the_loss_of_chunks_takes_the_products_of_its_head(products: str) -> None:
    head, stream = head_of(products), drawn_stream()
    found = captured_loss(head, stream, (0.1, 1e-2))
    operand = head.weight.detach()
    is_rounded = products == "bfloat16"
    exact = loss_by_formula(operand.bfloat16() if is_rounded else operand, stream, (0.1, 1e-2))
    assert [tensor.dtype for tensor in found] == [torch.float32, torch.bfloat16, torch.float32]
    assert error(found[0], exact[0]) < 1e-6
    # gradients of bf16 operands are products with slopes in bf16
    assert error(found[2], exact[2]) < (5e-3 if is_rounded else 1e-6)
    assert error(found[1], exact[1]) < 5e-3


def split_head(kind: str, how: tuple[float, float] | None) -> list[Tensor]:
    """Loss or logits, and gradients, of a head whose vocabulary is split over all ranks."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    head: Any = nn.Linear(WIDTH, VOCABULARY, bias=False)
    converted = head_of("ieee" if kind == "plain" else kind)
    head = converted if kind != "plain" else head
    split = distribute_tensor(converted.weight.detach(), mesh, [Shard(0)])
    head.weight = nn.Parameter(split)
    whole = drawn_stream(torch.float32 if kind == "plain" else torch.bfloat16).detach()
    stream: Any = DTensor.from_local(whole, mesh, [Replicate()]).requires_grad_()
    if how is not None:
        found = captured_loss(head, stream, how)
    else:
        logits = head(stream)
        assert logits.placements == (Shard(2),)
        slopes = torch.randn(*logits.shape, generator=torch.Generator().manual_seed(3))
        logits.backward(distribute_tensor(slopes, mesh, [Shard(2)]))
        found = [logits.detach(), stream.grad, head.weight.grad]
    weight_grad: Any = found[2]
    assert weight_grad.placements == (Shard(0),)
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in found]


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("kind", ["plain", "ieee", "bfloat16"])
def test_ranks_that_share_the_vocabulary_find_loss_and_gradients_of_float64(
    kind: str, nproc: int, tmp_path: Path
) -> None:
    for number, how in enumerate(SETTINGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        operand = head_of("ieee").weight.detach()
        stream = drawn_stream(torch.float32 if kind == "plain" else torch.bfloat16)
        is_rounded = kind == "bfloat16"
        exact = loss_by_formula(operand.bfloat16() if is_rounded else operand, stream, how)
        for found in call_on_ranks(nproc, SplitHead(kind, how), folder):
            assert error(found[0], exact[0]) < 1e-6
            assert error(found[1], exact[1]) < (2e-6 if kind == "plain" else 8e-3)
            assert error(found[2], exact[2]) < (5e-3 if is_rounded else 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tf32", "bfloat16"])
def test_logits_of_ranks_are_those_of_one_process(kind: str, tmp_path: Path) -> None:
    head, stream = head_of(kind), drawn_stream()
    logits = head(stream)
    slopes = torch.randn(*logits.shape, generator=torch.Generator().manual_seed(3))
    logits.backward(slopes)
    expected: list[Any] = [logits, stream.grad, head.weight.grad]
    for found in call_on_ranks(2, SplitHead(kind, None), tmp_path):
        assert error(found[0], expected[0].detach().double()) < 1e-6
        # each rank rounds its summand of the stream's gradient to bf16
        assert error(found[1], expected[1].double()) < 8e-3
        assert error(found[2], expected[2].double()) < 1e-6


class SplitHead:
    """`split_head` with its arguments, for other processes."""

    def __init__(self, kind: str, how: tuple[float, float] | None) -> None:
        self.kind, self.how = kind, how

    def __call__(self) -> list[Tensor]:
        return split_head(self.kind, self.how)
