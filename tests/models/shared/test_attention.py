"""Attention back ends: sdpa against the formula, and a clear answer for those that cannot run."""

import itertools

import pytest
import torch

from titanrun.config.problems import ProblemsFound
from titanrun.models.shared.attention import BACKENDS, attention_backend
from titanrun.models.shared.config import AttentionConfig, refused_attention


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_sdpa_equals_the_formula_in_float64(kv_heads):
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, kv_heads, 9, 8), torch.randn(2, kv_heads, 9, 8)
    out = attention_backend(AttentionConfig(backend="sdpa", mask="causal"))(q, k, v)
    k, v = (shared.double().repeat_interleave(4 // kv_heads, dim=1) for shared in (k, v))
    scores = (q.double() @ k.mT / 8**0.5).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    assert torch.allclose(out.double(), scores.softmax(-1) @ v, atol=1e-6)


@pytest.mark.parametrize("queries", [1, 4, 9])
def test_the_queries_of_a_rows_end_see_what_they_see_in_the_whole_row(queries):
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    attention = attention_backend(AttentionConfig(backend="sdpa", mask="causal"))
    assert torch.allclose(attention(q[:, :, -queries:], k, v), attention(q, k, v)[:, :, -queries:], atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_accelerator_sees_what_the_cpu_sees_of_a_rows_end(dtype):
    q, k, v = (torch.randn(2, heads, length, 64) for heads, length in ((8, 128), (2, 512), (2, 512)))
    attention = attention_backend(AttentionConfig(backend="sdpa", mask="causal"))
    places = ((torch.device("cpu"), torch.float32), (torch.device("cuda"), dtype))
    inputs = [[tensor.to(*place).requires_grad_() for tensor in (q.clone(), k.clone(), v.clone())] for place in places]
    expected, found = ([out := attention(*each), *torch.autograd.grad(out.sum(), each)] for each in inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu().float(), theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("backend", "mask", "code", "field"),
    [
        ("flex", "causal", "not-built", "backend"),
        ("flex", "block_causal", "not-built", "backend"),
        ("varlen", "block_causal", "not-built", "backend"),
        ("sdpa", "block_causal", "conflict", "mask"),
    ],
)
def test_what_cannot_run_is_refused_alike_by_validate_and_by_the_model(backend, mask, code, field):
    attention = AttentionConfig(backend=backend, mask=mask)
    problem = refused_attention(attention)
    assert (problem.code, problem.path) == (code, ("model", "attention", field))
    assert "sdpa" in problem.help or "causal" in problem.help
    with pytest.raises(ProblemsFound) as found:
        attention_backend(attention)
    assert found.value.problems == (problem,)


def test_every_back_end_and_mask_is_either_built_or_refused():
    for backend, mask in itertools.product(("sdpa", "flex", "varlen"), ("causal", "block_causal")):
        attention = AttentionConfig(backend=backend, mask=mask)
        assert refused_attention(attention) is not None or backend in BACKENDS


def test_nothing_is_refused_before_it_is_decided():
    assert refused_attention(AttentionConfig()) is None
    assert refused_attention(AttentionConfig(mask="block_causal")) is None
