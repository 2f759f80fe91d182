"""The loop to compare with: Llama written by hand for one GPU, without titanrun.

It imports torch only, and torchao for float8. Weights are bf16 copies of fp32 ones, as FSDP
computes. Whatever makes it faster, it must get: it is the judge.

Shapes: B sequences, T tokens, D model width, N heads, H head width, P = H / 2 pairs, V vocabulary,
X = B * T tokens, C tokens of a chunk.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from gpu_bare_update import build_update

KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
THETA, EPS, INIT_STD = 500_000.0, 1e-5, 0.02
CHUNKS = 8


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Llama model."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    hidden_dim: int
    vocab_size: int


class Layer(nn.Module):
    """Decoder layer, with torchtitan's parameter names."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        head_dim = sizes.dim // sizes.n_heads
        linear = partial(nn.Linear, bias=False)
        self.head_dim = head_dim
        self.attention = nn.ModuleDict(
            {
                "wq": linear(sizes.dim, sizes.dim),
                "wk": linear(sizes.dim, sizes.n_kv_heads * head_dim),
                "wv": linear(sizes.dim, sizes.n_kv_heads * head_dim),
                "wo": linear(sizes.dim, sizes.dim),
            }
        )
        self.feed_forward = nn.ModuleDict(
            {
                "w1": linear(sizes.dim, sizes.hidden_dim),
                "w2": linear(sizes.hidden_dim, sizes.dim),
                "w3": linear(sizes.dim, sizes.hidden_dim),
            }
        )
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(sizes.dim, eps=EPS) for _ in range(2))

    def forward(self, x_BTD: Tensor, rope_TP2: Tensor) -> Tensor:
        """Return the stream after the layer."""
        normed, own = self.attention_norm(x_BTD), self.attention
        q, k, v = (
            own[name](normed).unflatten(-1, (-1, self.head_dim)) for name in ("wq", "wk", "wv")
        )
        q, k = rotate(q, rope_TP2), rotate(k, rope_TP2)
        with sdpa_kernel(KERNELS, set_priority=True):
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=q.size(2) != k.size(2),
            )
        x_BTD = x_BTD + own["wo"](out.transpose(1, 2).flatten(2))
        normed, own = self.ffn_norm(x_BTD), self.feed_forward
        return x_BTD + own["w2"](F.silu(own["w1"](normed)) * own["w3"](normed))


def rotate(x_BTNH: Tensor, rope_TP2: Tensor) -> Tensor:
    """Rotate neighboring pairs in fp32."""
    real, imag = x_BTNH.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope_TP2.unsqueeze(1).unbind(-1)
    turned = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1)
    return turned.flatten(-2).type_as(x_BTNH)


class Llama(nn.Module):
    """Llama, up to the stream after the last norm."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(sizes.vocab_size, sizes.dim)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.n_layers))
        self.norm = nn.RMSNorm(sizes.dim, eps=EPS)
        self.output = nn.Linear(sizes.dim, sizes.vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor, rope_TP2: Tensor) -> Tensor:
        """Return the normed stream [B, T, D]."""
        x_BTD = self.tok_embeddings(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, rope_TP2)
        return self.norm(x_BTD)


@torch.no_grad()
def init_weight(name: str, weight: Tensor) -> None:
    """Initialize a weight by its name alone, on the device: both sides start from the same."""
    if weight.dim() == 1:
        weight.fill_(1.0)
        return
    generator = torch.Generator(weight.device).manual_seed(zlib.crc32(name.encode()))
    # fp32 draws, so that the dtype of storage does not change them
    drawn = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    weight.copy_(drawn.normal_(0.0, INIT_STD, generator=generator))


class HeadLoss(torch.autograd.Function):
    """Cross entropy of the head, whose gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x_XD: Tensor, w_VD: Tensor, labels_X: Tensor, slopes: Any) -> Tensor:  # type: ignore[override]
        """Return the mean loss."""
        total = torch.zeros((), device=x_XD.device)
        x_grad, w_grad = torch.empty_like(x_XD), torch.zeros_like(w_VD, dtype=torch.float32)
        each = -(-x_XD.size(0) // CHUNKS)
        for start in range(0, x_XD.size(0), each):
            x_CD = x_XD[start : start + each]
            loss, p_CV = slopes(x_CD @ w_VD.t(), labels_X[start : start + each], x_XD.size(0))
            total += loss
            torch.mm(p_CV, w_VD, out=x_grad[start : start + each])
            if x_XD.is_cuda and x_XD.dtype != torch.float32:
                w_grad.add_(torch.mm(p_CV.t(), x_CD, out_dtype=torch.float32))
            else:
                w_grad.addmm_(p_CV.t().float(), x_CD.float())
        ctx.gradients = x_grad, w_grad.to(w_VD.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Return the gradients."""
        gradients, ctx.gradients = ctx.gradients, None
        return *gradients, None, None


def compute_slopes(logits_CV: Tensor, labels_C: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the loss of a chunk, divided by all tokens, and the gradient of its logits."""
    z = logits_CV.float()
    lse = z.logsumexp(-1, keepdim=True)
    loss = (lse - z.gather(-1, labels_C[:, None])).sum() / count
    p = (z - lse).exp()
    p = p.scatter_add(-1, labels_C[:, None], torch.full_like(lse, -1.0))
    return loss, (p / count).to(logits_CV.dtype)


def choose_saved(counts: dict[bool, int], context: Any, op: Any, *_: Any, **__: Any) -> Any:
    """Keep attention and every second product, as torchtitan does."""
    name = op.name().partition(".")[0]
    if name in ("aten::mm", "aten::_scaled_mm"):
        counts[context.is_recompute] = counts.get(context.is_recompute, 0) + 1
        keeps = counts[context.is_recompute] % 2 == 1
    else:
        keeps = "scaled_dot_product" in name
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def build_step(
    sizes: Sizes,
    *,
    device: torch.device,
    seq_len: int,
    float8: str | None = None,
    compiles: bool = True,
    selective_ac: bool = False,
    bf16_states: bool = False,
    bf16_storage: bool = False,
    computes_bf16: bool = True,
) -> Callable[[Tensor], Tensor]:
    """Build the model and return the function of one optimizer step on rows [B, T + 1].

    Rows lie on the device.
    """
    model = build_model(sizes, device, float8)
    names = dict(model.named_parameters())
    masters = list(names.values())
    for name, weight in names.items():
        init_weight(name, weight)
    if bf16_storage:
        model.to(torch.bfloat16)
        masters = list(model.parameters())
    copies = computes_bf16 and not bf16_storage
    working = build_working_weights(model, masters) if copies else masters
    wrap_layers(model, compiles=compiles, selective_ac=selective_ac)
    head_dim = sizes.dim // sizes.n_heads
    exponents = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    positions = torch.arange(seq_len, device=device, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / THETA**exponents)
    rope = torch.stack([angles.cos(), angles.sin()], dim=-1)
    slopes = torch.compile(compute_slopes) if compiles else compute_slopes
    update = build_update(
        dict(zip(names, masters, strict=True)),
        bf16_states=bf16_states,
        device=device,
        compile_lists=torch.compile if compiles else None,
    )

    def step(rows: Tensor) -> Tensor:
        stream = model(rows[:, :-1], rope).flatten(0, 1)
        loss = HeadLoss.apply(stream, model.output.weight, rows[:, 1:].flatten(), slopes)
        loss.backward()
        if copies:
            for master, copy in zip(masters, working, strict=True):
                master.grad, copy.grad = copy.grad.float(), None
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([m.grad for m in masters])))
        update(norm)
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(working, masters)
        for master in masters:
            master.grad = None
        return loss.detach()

    return step


def build_model(sizes: Sizes, device: torch.device, float8: str | None) -> Llama:
    """Build the model with uninitialized weights, with float8 layers if asked."""
    with torch.device("meta"):
        model = Llama(sizes)
    if float8 is not None:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(float8)
        keep = lambda _, name: name != "output"  # noqa: E731
        convert_to_float8_training(model, config=config, module_filter_fn=keep)
    return model.to_empty(device=device)


def build_working_weights(model: nn.Module, masters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Put bf16 copies into the model and return them."""
    copies = [nn.Parameter(master.detach().bfloat16()) for master in masters]
    by_id = {id(master): copy for master, copy in zip(masters, copies, strict=True)}
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                module._parameters[name] = by_id[id(held)]
    return copies


def wrap_layers(model: Llama, *, compiles: bool, selective_ac: bool) -> None:
    """Checkpoint and compile each layer."""
    for layer in model.layers:
        if selective_ac:
            context = lambda: create_selective_checkpoint_contexts(partial(choose_saved, {}))  # noqa: E731
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, context_fn=context
            )
        if compiles:
            layer.forward = torch.compile(layer.forward, fullgraph=True)
