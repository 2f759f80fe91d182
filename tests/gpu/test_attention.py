"""Kernels of attention, forward and backward, against the formula in float64.

On a CPU, flex and varlen write their masks out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.attention import BACKENDS
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.sdpa_attention import FullAttention, SdpaAttention
from titanrun.models.shared.spec.flavors import resolve_model_sizes

# distance from float64, relative to its norm; a kernel in fp32 adds up in blocks
FARTHEST = {torch.bfloat16: 2e-2, torch.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", FARTHEST, ids=["bf16", "fp32"])
ROWS, TOKENS = 2, 256
CAUSAL, DOCUMENTS = CausalMask(), CausalMask(separates_documents=True)
STARTS = [[0, 100, 137], [0, TOKENS, TOKENS]]
# each width is a kernel of its own for flex, which takes seconds to compile: not those between
WIDTHS = {"sdpa": (64, 80, 96, 128, 192), "varlen": (64, 80, 96, 128, 192), "flex": (80, 192)}
FUSED = ("cudnn_attention", "flash_attention")


@pytest.fixture(autouse=True)
def compiled_anew(device: torch.device) -> Iterator[None]:
    """Compile flex attention for each test, and never fall back to uncompiled code."""
    if device.type == "cpu":
        yield
        return
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield


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
    knows_starts: bool = False

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


def find_seen_keys(mask: CausalMask, documents_BT: Tensor) -> Tensor:
    """The keys [B, S, T] that each query sees: not by the code that is tested."""
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=documents_BT.device).tril()
    if mask.window is not None:
        seen = seen.triu(1 - mask.window)
    if not mask.separates_documents:
        return seen.unsqueeze(0)
    return seen & (documents_BT.unsqueeze(2) == documents_BT.unsqueeze(1))


def compute_exactly(case: Case, inputs: list[Tensor], documents_BT: Tensor) -> Tensor:
    """The formula, with all scores written out."""
    q, k, v, sinks = inputs
    group = case.heads // case.kv_heads
    scores = q @ k.repeat_interleave(group, dim=1).mT * case.width**-0.5
    if case.soft_cap is not None:
        scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
    seen = find_seen_keys(case.mask, documents_BT)
    scores = scores.masked_fill(~seen.unsqueeze(1), float("-inf"))
    if case.has_sinks:
        sink = sinks.view(1, -1, 1, 1).expand(ROWS, case.heads, TOKENS, 1)
        scores = torch.cat([scores, sink], dim=-1)
    return scores.softmax(-1)[..., :TOKENS] @ v.repeat_interleave(group, dim=1)


def check(case: Case, device: torch.device) -> None:
    documents_BT = number_documents(device)
    exact = [each.requires_grad_() for each in case.draw(device)]
    given = [each.detach().to(case.dtype).requires_grad_() for each in exact]
    backend = BACKENDS[case.backend](case.mask, soft_cap=case.soft_cap)
    starts_BM = torch.tensor(STARTS, dtype=torch.int32, device=device)
    mask = backend.build_mask(
        TOKENS,
        documents_BT,
        device=device,
        document_starts_BM=starts_BM if case.knows_starts else None,
    )
    found = backend(*given[:3], mask, given[3] if case.has_sinks else None)
    wanted = compute_exactly(case, exact, documents_BT)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(device)
    needed = slice(None) if case.has_sinks else slice(3)
    gradients = torch.autograd.grad(found, given[needed], slope.to(case.dtype))
    truths = torch.autograd.grad(wanted, exact[needed], slope.to(case.dtype).double())
    for ours, truth in zip([found, *gradients], [wanted, *truths], strict=True):
        assert ours.dtype == case.dtype
        assert (ours.double() - truth).norm() <= FARTHEST[case.dtype] * truth.norm()


@DTYPES
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_sdpa_gqa(dtype: torch.dtype, kv_heads: int, device: torch.device) -> None:
    check(Case("sdpa", kv_heads=kv_heads, dtype=dtype), device)


@DTYPES
@pytest.mark.parametrize("mask", [DOCUMENTS, replace(DOCUMENTS, window=33)], ids=["all", "window"])
def test_sdpa_with_a_mask(mask: CausalMask, dtype: torch.dtype, device: torch.device) -> None:
    check(Case("sdpa", mask, dtype=dtype), device)
    check(Case("sdpa", mask, dtype=dtype, has_sinks=True), device)
    check(Case("sdpa", mask, dtype=dtype, soft_cap=2.0), device)


@DTYPES
def test_flex_block_causal(dtype: torch.dtype, device: torch.device) -> None:
    check(Case("flex", DOCUMENTS, dtype=dtype), device)


def test_flex_window_and_sinks(device: torch.device) -> None:
    check(Case("flex", replace(DOCUMENTS, window=33), has_sinks=True), device)


def test_flex_soft_cap(device: torch.device) -> None:
    check(Case("flex", DOCUMENTS, soft_cap=2.0), device)


# its kernel on a GPU takes 16-bit numbers only: a problem says so
@pytest.mark.parametrize("knows_starts", [True, False])
def test_varlen_gqa_equals_written_out_mask(knows_starts: bool, device: torch.device) -> None:
    check(Case("varlen", DOCUMENTS, knows_starts=knows_starts), device)


def test_varlen_window(device: torch.device) -> None:
    check(Case("varlen", replace(DOCUMENTS, window=33), knows_starts=True), device)


@pytest.mark.parametrize(
    ("backend", "width"), [(name, width) for name, widths in WIDTHS.items() for width in widths]
)
def test_head_widths_64_80_96_128_192(backend: str, width: int, device: torch.device) -> None:
    check(Case(backend, DOCUMENTS, width=width), device)


class Fp32Norm(nn.Module):
    """As autocast on CUDA computes a norm since torch 2.12."""

    def forward(self, x_BTNH: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTNH.dtype, torch.float32)
        return nn.functional.rms_norm(x_BTNH.to(wide), x_BTNH.shape[-1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_qk_norm_with_every_back_end(backend: str, device: torch.device) -> None:
    sizes = Qwen3Config.model_validate(
        resolve_model_sizes(Qwen3Config(flavor="debugmodel", n_layers=1, vocab_size=64))
    )
    documents_BT = number_documents(device)
    drawn = torch.randn(ROWS, TOKENS, int(sizes.dim), generator=torch.Generator().manual_seed(0))
    results = []
    for name, dtype in ((backend, torch.bfloat16), ("sdpa", torch.float64)):
        built = GroupedQueryAttention(
            sizes, backend=BACKENDS[name](DOCUMENTS), rotary_fn=None, qk_norm=True
        )
        generator = torch.Generator().manual_seed(1)
        for weight in built.parameters():
            nn.init.normal_(weight, std=0.05, generator=generator)
        attention = built.bfloat16().to(device, dtype)
        attention.q_norm = attention.k_norm = Fp32Norm()  # type: ignore[assignment]
        x_BTD = drawn.bfloat16().to(device, dtype).requires_grad_()
        mask = attention.backend.build_mask(TOKENS, documents_BT, device=device)
        out = attention(x_BTD, torch.empty(0), mask)
        (slope,) = torch.autograd.grad(out.square().sum(), x_BTD)
        results.append((out.detach().double(), slope.double()))
    for ours, truth in zip(*results, strict=True):
        assert (ours - truth).norm() <= FARTHEST[torch.bfloat16] * truth.norm()


def find_kernels(backend: nn.Module, device: torch.device) -> list[str]:
    """The operators that the back end calls for bf16 inputs."""
    q, k, v = (torch.randn(2, 8, 256, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    with torch.profiler.profile(acc_events=True) as profile:
        backend(q, k, v, None)
    return [event.key for event in profile.key_averages() if "scaled_dot_product" in event.key]


def test_sdpa_takes_cudnn_or_flash_first(device: torch.device) -> None:
    names = find_kernels(SdpaAttention(CAUSAL), device)
    assert any(kernel in name for kernel in FUSED for name in names), names


def test_flux_uses_the_kernel_order(device: torch.device) -> None:
    names = find_kernels(FullAttention(), device)
    assert any(kernel in name for kernel in FUSED for name in names), names
