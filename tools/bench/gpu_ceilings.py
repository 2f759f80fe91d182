"""What a device reaches at best at the shapes of a row: products, attention and copies."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gpu_ceiling_sum import list_products
from gpu_optimizers import time_calls
from gpu_rows import Row

COPY_BYTES = 2**30
TOY_BYTES = 2**20
KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
Found = dict[str, dict[str, float]]


def measure_ceilings(row: Row, device: torch.device) -> Found:
    """Return what copies, products and attention of a row take alone, on random data."""
    found = {"copy": measure_copy(device)}
    for name, build in PRODUCTS.items():
        if name == "bf16" or has_float8(device):
            found[f"products {name}"] = measure_products(row, device, build)
    for name, kernel in KERNELS.items():
        taken = measure_attention(row, device, kernel)
        if taken is not None:
            found[f"attention {name}"] = taken
    return found


def has_float8(device: torch.device) -> bool:
    """Return whether the device multiplies float8."""
    return device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 9)


def measure_copy(device: torch.device) -> dict[str, float]:
    """Return the time of a copy on the device; each byte is read and written."""
    size = TOY_BYTES if device.type == "cpu" else COPY_BYTES
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = time_calls(lambda: target.copy_(source), device)
    return {"ms": 1e3 * seconds, "gb_per_second": 2 * size / seconds / 1e9}


def multiply_bf16(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """Return a product in bf16."""
    return lambda: a @ b


def multiply_float8(a: torch.Tensor, b: torch.Tensor, *, by_row: bool) -> Callable[[], Any]:
    """Return a product in float8 with one scale for each matrix, or for each row and column."""
    left, right = (each.to(torch.float8_e4m3fn) for each in (a, b.t().contiguous()))
    sizes = ((len(a), 1), (1, b.shape[1])) if by_row else ((), ())
    scales = [torch.ones(size, device=a.device) for size in sizes]
    return lambda: torch._scaled_mm(
        left, right.t(), *scales, out_dtype=torch.bfloat16, use_fast_accum=True
    )


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Callable[[], Any]]] = {
    "bf16": multiply_bf16,
    "float8 tensorwise": lambda a, b: multiply_float8(a, b, by_row=False),
    "float8 rowwise": lambda a, b: multiply_float8(a, b, by_row=True),
}


def measure_products(
    row: Row, device: torch.device, build: Callable[..., Callable[[], Any]]
) -> dict[str, float]:
    """Return the time of all products of a step in the layers, forward and backward."""
    seconds, tokens, flops = 0.0, row.batch * row.seq_len, 0
    for width, out, count in list_products(row):
        for shape in ((tokens, width, out), (tokens, out, width), (out, tokens, width)):
            left, inner, right = shape
            make: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
            call = build(torch.randn(left, inner, **make), torch.randn(inner, right, **make))
            seconds += count * time_calls(call, device, calls=10)
            flops += count * 2 * left * inner * right
    return {"ms": 1e3 * seconds, "tflops": flops / seconds / 1e12}


def measure_attention(
    row: Row, device: torch.device, kernel: SDPBackend
) -> dict[str, float] | None:
    """Return the time of causal attention in all layers, forward and backward.

    None: the device has no such kernel.
    """
    s = row.sizes
    head = s.get("head_dim", s["dim"] // s["n_heads"])
    make: dict[str, Any] = {"device": device, "dtype": torch.bfloat16, "requires_grad": True}
    shapes = [(row.batch, s[n], row.seq_len, head) for n in ("n_heads", "n_kv_heads", "n_kv_heads")]
    inputs = [torch.randn(shape, **make) for shape in shapes]
    weights = torch.randn(shapes[0], device=device, dtype=torch.bfloat16)

    def call() -> None:
        with sdpa_kernel(kernel):
            out = scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
        torch.autograd.grad(out, inputs, weights)

    try:
        seconds = s["n_layers"] * time_calls(call, device, calls=10)
    except RuntimeError:
        return None
    # 2 products forward and 5 backward, half of them below the diagonal
    flops = 7 * s["n_layers"] * row.batch * s["n_heads"] * head * row.seq_len**2
    return {"ms": 1e3 * seconds, "tflops": flops / seconds / 1e12}
