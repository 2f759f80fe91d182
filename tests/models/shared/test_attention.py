"""Attention back ends: every mask, with and without sinks, against the formula in float64, which
loops over queries and keys."""

import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from titanrun.distributed.torch_versions import adapt_varlen_kernel
from titanrun.models.shared import flex_attention as flex_attention_module
from titanrun.models.shared.attention import BACKENDS, build_attention_backend
from titanrun.models.shared.attention_masks import CausalMask
from titanrun.models.shared.config import AttentionConfig
from titanrun.models.shared.flex_attention import FlexAttention, build_block_mask
from titanrun.models.shared.sdpa_attention import KERNELS, FullAttention, SdpaAttention
from titanrun.models.shared.varlen_attention import VarlenAttention

TOKENS = 11
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5 + [2] * 2, [0] * 11])
MASKS = {
    "causal": CausalMask(),
    "documents": CausalMask(separates_documents=True),
    "window": CausalMask(window=3),
    "window of one": CausalMask(window=1),
    "blocks": CausalMask(block=4),
    "documents and window": CausalMask(separates_documents=True, window=3),
    "documents and blocks": CausalMask(separates_documents=True, block=4),
    "limits beyond the row": CausalMask(window=TOKENS, block=TOKENS),
}


def sees(mask, row, query, key):
    """The mask in the words of its definition."""
    return (
        key <= query
        and (not mask.separates_documents or DOCUMENTS[row, query] == DOCUMENTS[row, key])
        and (mask.window is None or query - key + 1 <= mask.window)
        and (mask.block is None or query // mask.block == key // mask.block)
    )


def by_formula(q, k, v, mask, sinks=None, scale=None):
    """Softmax over the keys that a query sees, and the sink, which adds nothing to the output."""
    k, v = (shared.repeat_interleave(q.size(1) // k.size(1), dim=1) for shared in (k, v))
    scores = q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)
    allowed = [
        [[sees(mask, row, query, key) for key in range(TOKENS)] for query in range(TOKENS)]
        for row in range(len(q))
    ]
    scores = scores.masked_fill(~torch.tensor(allowed).unsqueeze(1), -torch.inf)
    if sinks is None:
        return scores.softmax(-1) @ v
    columns = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, columns], dim=-1).softmax(-1)[..., :-1] @ v


def inputs(kv_heads=2, width=8):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, TOKENS, width, generator=generator)
        for heads in (4, kv_heads, kv_heads)
    )
    return (
        q.requires_grad_(),
        k.requires_grad_(),
        v.requires_grad_(),
        torch.randn(4, generator=generator).requires_grad_(),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("kv_heads", "has_sinks"), [(4, False), (2, True), (1, False)])
def test_outputs_and_gradients_are_those_of_the_formula(backend, mask, kv_heads, has_sinks):
    q, k, v, sinks = inputs(kv_heads)
    given = [q, k, v, sinks][: 4 if has_sinks else 3]
    attention = BACKENDS[backend](mask, scale=0.3)
    seen = attention.build_mask(TOKENS, DOCUMENTS, device=q.device)
    out = attention(q, k, v, seen, sinks if has_sinks else None)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = by_formula(*exact[:3], mask, exact[3] if has_sinks else None, scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    found, wanted = (
        torch.autograd.grad((out * weight).sum(), given),
        torch.autograd.grad((expected * weight).sum(), exact),
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize(("queries", "backend"), [(1, "sdpa"), (4, "flex"), (11, "sdpa")])
def test_the_queries_of_a_rows_end_see_what_they_see_in_the_whole_row(mask, queries, backend):
    q, k, v, sinks = inputs()
    attention = BACKENDS[backend](mask)
    whole = attention(q, k, v, attention.build_mask(TOKENS, DOCUMENTS, device=q.device), sinks)
    seen = attention.build_mask(queries, DOCUMENTS, device=q.device, num_keys=TOKENS)
    torch.testing.assert_close(
        attention(q[:, :, -queries:], k, v, seen, sinks),
        whole[:, :, -queries:],
        atol=1e-6,
        rtol=1e-5,
    )


def test_scores_are_scaled_by_the_width_of_a_head_where_nothing_else_is_said():
    q, k, v, _ = inputs(width=16)
    expected = by_formula(q.double(), k.double(), v.double(), CausalMask())
    torch.testing.assert_close(
        SdpaAttention(CausalMask())(q, k, v).double(), expected, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("backend", [SdpaAttention(CausalMask()), FullAttention()])
def test_kernels_are_tried_fastest_first(backend, monkeypatch):
    orders, plain = [], F.scaled_dot_product_attention

    def record(*arguments, **named):
        orders.append(torch._C._get_sdp_priority_order())
        return plain(*arguments, **named)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    q, k, v, _ = inputs(4)
    backend(q, k, v, None)
    (order,) = orders
    assert [SDPBackend(each) for each in order[: len(KERNELS)]] == KERNELS


def test_what_is_causal_alone_needs_no_mask_written_out():
    cpu = torch.device("cpu")
    assert (
        SdpaAttention(CausalMask(separates_documents=True)).build_mask(8, None, device=cpu) is None
    )
    assert FlexAttention(CausalMask(window=8)).build_mask(8, DOCUMENTS, device=cpu) is None
    assert SdpaAttention(CausalMask(window=7)).build_mask(8, None, device=cpu).shape == (1, 1, 8, 8)
    assert VarlenAttention(CausalMask(separates_documents=True)).build_mask(
        11, DOCUMENTS, device=cpu
    ).shape == (
        2,
        1,
        11,
        11,
    )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_segments_are_the_stretches_that_see_nothing_before_them(mask):
    first = mask.compute_segment_starts(2, TOKENS, DOCUMENTS, device=DOCUMENTS.device)
    alone = CausalMask(separates_documents=mask.separates_documents, block=mask.block)
    expected = [
        [not any(sees(alone, row, query, key) for key in range(query)) for query in range(TOKENS)]
        for row in range(2)
    ]
    assert first.tolist() == expected


def test_the_config_names_back_end_and_mask():
    for backend, mask in itertools.product(BACKENDS, ("causal", "block_causal")):
        built = build_attention_backend(
            AttentionConfig(backend=backend, mask=mask), window=5, block=6, scale=0.5
        )
        assert type(built) is BACKENDS[backend]
        assert built.mask == CausalMask(
            separates_documents=mask == "block_causal", window=5, block=6
        )
        assert built.scale == 0.5


def varlen_by_documents(query, key, value, starts, longest, scale, window_size):
    """The kernel's formula: causal attention within each stretch, in a window to the left."""
    assert longest >= starts.diff().max() and window_size[1] == 0
    group, found = query.size(1) // key.size(1), []
    for start, end in itertools.pairwise(starts.tolist()):
        q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        distance = torch.arange(end - start).unsqueeze(1) - torch.arange(end - start)
        seen = distance >= 0
        if window_size[0] >= 0:
            seen &= distance <= window_size[0]
        scores = (q @ k.mT * scale).masked_fill(~seen, -torch.inf)
        found.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(found)


def varlen_attn_of_torch_2_11(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    return varlen_by_documents(query, key, value, cu_seq_q, max_q, scale, window_size)


def varlen_attn_of_torch_2_13(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    # as torch checks it
    assert enable_gqa or query.size(1) == key.size(1)
    return varlen_by_documents(query, key, value, cu_seq_q, max_q, scale, window_size)


@pytest.mark.parametrize("kernel", [varlen_attn_of_torch_2_11, varlen_attn_of_torch_2_13])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("name", ["documents", "documents and window", "documents and blocks"])
def test_varlen_is_called_with_what_this_torch_takes(kernel, kv_heads, name):
    q, k, v, _ = inputs(kv_heads)
    mask = MASKS[name]
    starts = mask.compute_segment_starts(2, TOKENS, DOCUMENTS, device=DOCUMENTS.device)
    starts = [*starts.flatten().nonzero().flatten().tolist(), DOCUMENTS.numel()]
    seen = (adapt_varlen_kernel(kernel), torch.tensor(starts, dtype=torch.int32), TOKENS)
    out = VarlenAttention(mask, scale=0.3)(q, k, v, seen)
    expected = by_formula(q.double(), k.double(), v.double(), mask, scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


def varlen_attn_of_equal_widths(query, key, value, *lengths, **settings):
    # flash attention checks it, and the output is as wide as the queries
    assert query.size(-1) == key.size(-1) == value.size(-1)
    return varlen_attn_of_torch_2_13(query, key, value, *lengths, **settings)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("widths", ["wide keys", "wide values"])
def test_varlen_takes_keys_and_values_of_other_widths(widths, scale):
    q, k, v, _ = inputs(2)
    narrow = q.size(-1) - 3
    if widths == "wide keys":
        v = v[..., :narrow]
    else:
        q, k = q[..., :narrow], k[..., :narrow]
    mask = MASKS["documents"]
    starts = torch.tensor([[0, 4, 9, TOKENS], [0, TOKENS, TOKENS, TOKENS]], dtype=torch.int32)
    seen = (varlen_attn_of_equal_widths, mask.join_segments(starts, TOKENS), TOKENS)
    out = VarlenAttention(mask, scale=scale)(q, k, v, seen)
    dense = mask.to_dense(TOKENS, TOKENS, DOCUMENTS, device=q.device)
    expected = SdpaAttention(mask, scale=scale)(q.double(), k.double(), v.double(), dense)
    assert out.shape == (*q.shape[:-1], v.size(-1))
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_segments_joined_from_starts_are_those_that_the_mask_finds(mask):
    starts = torch.tensor([[0, 4, 9, TOKENS], [0, TOKENS, TOKENS, TOKENS]], dtype=torch.int32)
    ends = mask.join_segments(starts, TOKENS)
    found = mask.compute_segment_starts(2, TOKENS, DOCUMENTS, device=DOCUMENTS.device)
    assert ends.dtype == torch.int32
    assert ends.unique().tolist() == [*found.flatten().nonzero().flatten(), 2 * TOKENS]
    assert (ends.diff() >= 0).all()


@pytest.mark.parametrize("name", ["documents", "documents and window", "documents and blocks"])
def test_empty_segments_change_nothing(name):
    q, k, v, _ = inputs()
    mask = MASKS[name]
    starts = torch.tensor([[0, 4, 9, TOKENS], [0, TOKENS, TOKENS, TOKENS]], dtype=torch.int32)
    seen = (
        adapt_varlen_kernel(varlen_attn_of_torch_2_11),
        mask.join_segments(starts, TOKENS),
        TOKENS,
    )
    out = VarlenAttention(mask, scale=0.3)(q, k, v, seen)
    expected = by_formula(q.double(), k.double(), v.double(), mask, scale=0.3)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("queries", [TOKENS, 4])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_flex_attention_is_told_the_mask_that_is_written_out_elsewhere(mask, queries, has_sinks):
    # uncompiled it runs on a CPU, without gradients
    q, k, v, sinks = (tensor.detach() for tensor in inputs())
    module = torch.nn.attention.flex_attention
    seen = (
        module.flex_attention,
        build_block_mask(module.create_block_mask, mask, queries, TOKENS, DOCUMENTS, q.device),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = FlexAttention(mask)(q[:, :, -queries:], k, v, seen, sinks if has_sinks else None)
    expected = by_formula(
        q.double(), k.double(), v.double(), mask, sinks.double() if has_sinks else None
    )
    torch.testing.assert_close(out.double(), expected[:, :, -queries:], atol=2e-6, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("backend", "has_sinks"),
    [("sdpa", False), ("sdpa", True), ("flex", False), ("flex", True), ("varlen", False)],
)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_an_accelerator_computes_what_the_formula_says(backend, mask, has_sinks):
    q, k, v, sinks = inputs(width=64)
    given = [tensor.detach().cuda().bfloat16().requires_grad_() for tensor in (q, k, v, sinks)][
        : 4 if has_sinks else 3
    ]
    attention = BACKENDS[backend](mask)
    seen = attention.build_mask(TOKENS, DOCUMENTS.cuda(), device=given[0].device)
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in given]
    out, expected = (
        attention(*given[:3], seen, *given[3:]),
        by_formula(*exact[:3], mask, *exact[3:]),
    )
    torch.testing.assert_close(out.cpu().double(), expected, atol=2e-2, rtol=2e-2)
    found, wanted = (
        torch.autograd.grad(out.sum(), given),
        torch.autograd.grad(expected.sum(), exact),
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.cpu().double(), theirs, atol=6e-2, rtol=6e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_accelerator_sees_what_the_cpu_sees_of_a_rows_end(dtype):
    q, k, v = (
        torch.randn(2, heads, length, 64) for heads, length in ((8, 128), (2, 512), (2, 512))
    )
    attention = build_attention_backend(AttentionConfig(backend="sdpa", mask="causal"))
    places = ((torch.device("cpu"), torch.float32), (torch.device("cuda"), dtype))
    inputs = [
        [tensor.to(*place).requires_grad_() for tensor in (q.clone(), k.clone(), v.clone())]
        for place in places
    ]
    expected, found = (
        [out := attention(*each), *torch.autograd.grad(out.sum(), each)] for each in inputs
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu().float(), theirs, rtol=2e-2, atol=2e-2)


def test_flex_without_a_further_mask_is_plain_causal_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, capped = FlexAttention(CausalMask()), FlexAttention(CausalMask(), soft_cap=2.0)
    device = torch.device("meta")
    assert plain.build_mask(TOKENS, None, device=device) is None
    monkeypatch.setattr(
        flex_attention_module,
        "compile_flex_attention",
        lambda: ("kernel", lambda *arguments, **given: "blocks"),
    )
    for backend in (capped, FlexAttention(CausalMask(window=3))):
        assert backend.build_mask(TOKENS, None, device=device) == ("kernel", "blocks")


def test_flex_is_compiled_with_tuned_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: dict[str, object] = {}

    def record(function: Any, *, options: object = None) -> Any:
        compiled[function.__name__] = options
        return function

    monkeypatch.setattr(torch, "compile", record)
    flex_attention_module.compile_flex_attention.__wrapped__()
    assert compiled == {
        "flex_attention": {
            "max_autotune": True,
            "coordinate_descent_tuning": True,
            "triton.cudagraphs": False,
            "wrap_inductor_compiled_regions": True,
        },
        "create_block_mask": None,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler warns of itself
def test_compiled_flex_attention_has_the_output_of_the_formula() -> None:
    # on a CPU there is a forward pass only
    kernel, build = flex_attention_module.compile_flex_attention()
    mask = CausalMask(separates_documents=True)
    documents_BT = DOCUMENTS.repeat_interleave(16, dim=1)
    tokens = documents_BT.size(1)
    q, k, v = (torch.randn(2, 2, tokens, 16) for _ in range(3))
    blocks = build_block_mask(build, mask, tokens, tokens, documents_BT, torch.device("cpu"))
    with torch.no_grad():
        found = kernel(q, k, v, block_mask=blocks)
    seen = mask.to_dense(tokens, tokens, documents_BT, device=torch.device("cpu"))
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
