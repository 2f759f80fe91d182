"""Head and cross entropy in one: loss and gradients against float64, and what it computes."""

import re
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from titanrun.components.optimizers.adamw import build_adamw
from titanrun.components.optimizers.config import AdamWConfig
from titanrun.distributed.chunked_loss import ChunkedLMHead, LossCapture
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions, compute_logit_gradients
from titanrun.distributed.split_logits import compute_part_gradients, summarize_logit_part

TOKENS, WIDTH, VOCABULARY = 1024, 64, 4096


def drawn(dtype: torch.dtype, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """A stream, the weights of a head, and labels."""
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(tokens, WIDTH, generator=generator).to(dtype)
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.2).to(dtype)
    return stream, weight, torch.randint(VOCABULARY, (tokens,), generator=generator)


def options(num_chunks: int = 8, smoothing: float = 0.0, z_loss: float = 0.0) -> HeadLossOptions:
    return HeadLossOptions(num_chunks, smoothing, z_loss, compute_logit_gradients)


def found_by(
    stream: Tensor, weight: Tensor, labels: Tensor, weights: Tensor, divisor: float, **how: Any
) -> list[Tensor]:
    """Loss and both gradients."""
    given = [stream.clone().requires_grad_(), weight.clone().requires_grad_()]
    scale = torch.tensor(1 / divisor)
    loss = HeadLoss.apply(*given, labels, weights, scale, options(**how))
    return [loss.detach(), *torch.autograd.grad(loss, given)]


def by_formula(
    stream: Tensor,
    weight: Tensor,
    labels: Tensor,
    weights: Tensor,
    divisor: float,
    smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> list[Tensor]:
    """The same in float64 by torch's own cross entropy, of the same numbers."""
    given = [tensor.double().requires_grad_() for tensor in (stream, weight)]
    logits = given[0] @ given[1].T
    losses = cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    losses = losses + z_loss * logits.logsumexp(-1).square()
    loss = (losses * weights.double()).sum()
    return [loss.detach(), *torch.autograd.grad(loss / divisor, given)]


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("num_chunks", [1, 7, 8, 4096])
@pytest.mark.parametrize(
    ("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.2, 1e-3)]
)
def test_loss_and_gradients_are_those_of_float64(
    num_chunks: int, smoothing: float, z_loss: float
) -> None:
    stream, weight, labels = drawn(torch.float32, tokens=100)
    weights = torch.rand(100, generator=torch.Generator().manual_seed(1)).round(decimals=1)
    given = (stream, weight, labels, weights, 37.0)
    how = {"smoothing": smoothing, "z_loss": z_loss}
    for found, exact in zip(
        found_by(*given, num_chunks=num_chunks, **how), by_formula(*given, **how), strict=True
    ):
        assert error(found, exact) < 2e-6


def test_in_bf16_chunks_add_no_error() -> None:
    stream, weight, labels = drawn(torch.bfloat16)
    weights = torch.ones(TOKENS)
    exact = by_formula(stream, weight, labels, weights, TOKENS)
    loss, *found = found_by(stream, weight, labels, weights, TOKENS)
    # a whole head, whose loss is divided before the backward pass
    given = [stream.clone().requires_grad_(), weight.clone().requires_grad_()]
    whole = cross_entropy((given[0] @ given[1].T).float(), labels, reduction="sum")
    expected = torch.autograd.grad(whole / TOKENS, given)
    assert [gradient.dtype for gradient in found] == [torch.bfloat16] * 2
    assert loss.dtype == torch.float32
    for ours, theirs, truth in zip(found, expected, exact[1:], strict=True):
        assert error(ours, truth) <= 1.05 * error(theirs, truth) < 5e-3


def test_tokens_that_do_not_count_have_no_part() -> None:
    stream, weight, labels = drawn(torch.float32, tokens=16)
    stream[3] = torch.inf
    weights = torch.ones(16)
    weights[3] = 0
    loss, *_ = found_by(stream, weight, labels, weights, 1.0, num_chunks=4)
    assert loss.isfinite()
    stream[3] = 1
    nothing = found_by(stream, weight, labels, torch.zeros(16), 1.0)
    assert [float(tensor.abs().sum()) for tensor in nothing] == [0, 0, 0]


@pytest.mark.parametrize("frozen", ["stream", "weight", "both"])
def test_what_is_frozen_costs_nothing(frozen: str) -> None:
    stream, weight, labels = drawn(torch.float32, tokens=64)
    stream.requires_grad_(frozen == "weight")
    weight.requires_grad_(frozen == "stream")
    with Operations() as seen:
        loss = HeadLoss.apply(
            stream, weight, labels, torch.ones(64), torch.tensor(1.0), options(num_chunks=4)
        )
        if loss.requires_grad:
            loss.backward()
    assert seen.products == 4 * (1 if frozen == "both" else 2)
    assert (stream.grad is None, weight.grad is None) == (frozen != "weight", frozen != "stream")


class Operations(TorchDispatchMode):
    """Counts matrix products and the elements of the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.counts[func.overloadpacket.__name__] += 1
        if isinstance(found, Tensor):
            self.largest = max(self.largest, found.numel())
        return found

    @property
    def products(self) -> int:
        return self.counts["mm"] + self.counts["addmm_"]


def test_a_chunk_takes_one_product_of_each_kind_and_no_tensor_has_all_logits() -> None:
    stream, weight, labels = drawn(torch.bfloat16)
    with Operations() as seen:
        found_by(stream, weight, labels, torch.ones(TOKENS), TOKENS)
    assert seen.products == 3 * 8
    assert seen.largest == max(TOKENS * VOCABULARY // 8, VOCABULARY * WIDTH)


def test_a_tied_matrix_gets_both_gradients() -> None:
    torch.manual_seed(0)
    embedding, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    head.weight = embedding.weight
    labels = drawn(torch.float32, tokens=32)[2].view(2, 16)
    stream = embedding(labels).square()
    whole = cross_entropy(head(stream).flatten(0, 1), labels.flatten(), reduction="sum")
    (expected,) = torch.autograd.grad(whole / 32, [head.weight], retain_graph=True)
    wrapped = ChunkedLMHead(head, 4, needs_full_logits=False, cross_entropy=options(4))
    capture = LossCapture(lambda *_: whole, labels, torch.ones(2, 16), torch.tensor(32))
    with wrapped.capture_loss(capture):
        loss = head(stream)
    assert capture.has_divided_gradients
    loss.backward()
    torch.testing.assert_close(head.weight.grad, expected, rtol=1e-4, atol=1e-6)


class LiveBytes(TorchDispatchMode):
    """Most bytes of tensors that existed at the same time, of those made within the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {
            id(leaf.untyped_storage())
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(found):
            storage = leaf.untyped_storage() if isinstance(leaf, Tensor) else None
            if storage is not None and id(storage) not in given:
                self.sizes[id(storage)] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, id(storage), None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found


@pytest.mark.parametrize(("dtype", "each"), [(torch.bfloat16, 8), (torch.float32, 4)])
def test_the_plan_counts_what_a_head_with_the_loss_holds(dtype: torch.dtype, each: int) -> None:
    stream, weight, labels = drawn(dtype)
    given = [stream.requires_grad_(), weight.requires_grad_()]
    with LiveBytes() as seen:
        HeadLoss.apply(*given, labels, torch.ones(TOKENS), torch.tensor(0.5), options())
    # the gradient of the weight in fp32, the logits of a chunk, and the gradient of the stream
    counted = VOCABULARY * WIDTH * 4 + TOKENS // 8 * VOCABULARY * each
    counted += TOKENS * WIDTH * dtype.itemsize
    assert seen.peak == pytest.approx(counted, rel=0.1)


@pytest.mark.parametrize("implementation", ["foreach", "for-loop"])
def test_the_plan_counts_what_an_update_holds(implementation: Any) -> None:
    config = AdamWConfig(implementation=implementation)
    weights = [(str(place), nn.Parameter(torch.randn(256, 64))) for place in range(64)]
    for _, weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = build_adamw(config, parameters=weights)
    optimizer.step()
    with LiveBytes() as seen:
        optimizer.step()
    elements = 64 * 256 * 64
    # beside a few tensors as large as a weight
    assert seen.peak == pytest.approx(
        elements * config.compute_temporary_bytes(4), abs=4 * 256 * 64 * 4
    )


@pytest.mark.slow  # inductor starts a C++ compiler
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_compiled_gradients_of_logits_are_never_in_memory_in_fp32(is_split: bool) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, VOCABULARY, generator=generator).bfloat16()
    labels = torch.randint(VOCABULARY, (64,), generator=generator)
    weights, scale = torch.rand(64, generator=generator), torch.tensor(0.5)
    how = {"label_smoothing": 0.1, "z_loss": 0.01}
    given: list[Any] = [logits, labels, weights, scale]
    function: Any = compute_logit_gradients
    if is_split:
        # some labels are those of other ranks
        given[1] = labels - 1000
        given += [summarize_logit_part(logits, given[1]), 2 * VOCABULARY]
        function = compute_part_gradients
    found, (code, *_) = run_and_get_code(torch.compile(function), *given, **how)
    torch.testing.assert_close(found, function(*given, **how), rtol=2e-2, atol=1e-5)
    made = re.findall(rf"empty_strided_cpu\(\(64, {VOCABULARY}\).*(torch\.\w+)\)", code)
    assert made == ["torch.bfloat16"]
