"""Kernels of attention on a GPU, forward and backward, against the formula in float64."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from titanrun.models.shared.attention import (
    FlexAttention,
    FullAttention,
    SdpaAttention,
    VarlenAttention,
)
from titanrun.models.shared.attention_masks import CausalMask

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
# distance from float64, relative to its norm; a kernel in fp32 adds up in blocks
FARTHEST = {torch.bfloat16: 2e-2, torch.float32: 1e-5}
ROWS, TOKENS = 2, 256
BACKENDS = {"sdpa": SdpaAttention, "flex": FlexAttention, "varlen": VarlenAttention}
CAUSAL, DOCUMENTS = CausalMask(), CausalMask(separates_documents=True)


@dataclass(frozen=True)
class Case:
    """Inputs and a back end."""

    backend: str
    mask: CausalMask = CAUSAL
    heads: int = 8
    kv_heads: int = 2
    width: int = 64
    dtype: torch.dtype = torch.bfloat16
    soft_cap: float | None = None
    has_sinks: bool = False

    def draw(self, device: torch.device) -> list[Tensor]:
        """Queries, keys, values and sinks in float64, as the kernel's dtype rounds them."""
        generator = torch.Generator().manual_seed(0)
        shapes = [self.heads, self.kv_heads, self.kv_heads]
        drawn = [
            torch.randn(ROWS, heads, TOKENS, self.width, generator=generator) for heads in shapes
        ]
        drawn.append(torch.randn(self.heads, generator=generator))
        return [each.to(self.dtype).double().to(device) for each in drawn]


def number_documents(device: torch.device) -> Tensor:
    """Three documents in the first row, one in the second."""
    first = [0] * 100 + [1] * 37 + [2] * (TOKENS - 137)
    return torch.tensor([first, [0] * TOKENS], device=device)


def compute_exactly(case: Case, inputs: list[Tensor], documents_BT: Tensor) -> Tensor:
    """The formula, with all scores written out."""
    q, k, v, sinks = inputs
    group = case.heads // case.kv_heads
    scores = q @ k.repeat_interleave(group, dim=1).mT * case.width**-0.5
    if case.soft_cap is not None:
        scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
    mask = case.mask.to_dense(TOKENS, TOKENS, documents_BT, device=q.device)
    scores = scores.masked_fill(~mask, float("-inf"))
    if case.has_sinks:
        sink = sinks.view(1, -1, 1, 1).expand(ROWS, case.heads, TOKENS, 1)
        scores = torch.cat([scores, sink], dim=-1)
    return scores.softmax(-1)[..., :TOKENS] @ v.repeat_interleave(group, dim=1)


def check(case: Case, device: torch.device) -> None:
    documents_BT = number_documents(device)
    exact = [each.requires_grad_() for each in case.draw(device)]
    given = [each.detach().to(case.dtype).requires_grad_() for each in exact]
    backend = BACKENDS[case.backend](case.mask, soft_cap=case.soft_cap)
    mask = backend.build_mask(TOKENS, documents_BT, device=device)
    found = backend(*given[:3], mask, given[3] if case.has_sinks else None)
    wanted = compute_exactly(case, exact, documents_BT)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(device)
    needed = slice(None) if case.has_sinks else slice(3)
    gradients = torch.autograd.grad(found, given[needed], slope.to(case.dtype))
    truths = torch.autograd.grad(wanted, exact[needed], slope.to(case.dtype).double())
    for ours, truth in zip([found, *gradients], [wanted, *truths], strict=True):
        assert ours.dtype == case.dtype
        assert (ours.double() - truth).norm() <= FARTHEST[case.dtype] * truth.norm()


@pytest.mark.parametrize("dtype", FARTHEST)
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_sdpa_with_grouped_heads(dtype: torch.dtype, kv_heads: int, device: torch.device) -> None:
    check(Case("sdpa", kv_heads=kv_heads, dtype=dtype), device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", [DOCUMENTS, replace(DOCUMENTS, window=33)], ids=["all", "window"])
def test_documents_and_windows(backend: str, mask: CausalMask, device: torch.device) -> None:
    check(Case(backend, mask), device)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_windows_with_sinks(backend: str, device: torch.device) -> None:
    check(Case(backend, CausalMask(window=33), has_sinks=True), device)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_soft_caps(backend: str, device: torch.device) -> None:
    check(Case(backend, DOCUMENTS, soft_cap=2.0), device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [64, 80, 96, 128, 192])
def test_widths_of_heads(backend: str, width: int, device: torch.device) -> None:
    check(Case(backend, DOCUMENTS, width=width), device)


def test_fused_kernels_are_taken_first(device: torch.device, needs_gpu: None) -> None:
    fused = ("cudnn", "flash")
    q, k, v = (torch.randn(2, 8, 256, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    for backend in (SdpaAttention(CausalMask()), FullAttention()):
        with torch.profiler.profile(acc_events=True) as profile:
            backend(q, k, v, None)
        names = [event.key for event in profile.key_averages()]
        assert any(f"{kernel}_attention" in name for kernel in fused for name in names), names
