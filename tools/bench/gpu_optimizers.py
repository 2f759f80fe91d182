"""Time and memory traffic of an update by each optimizer, on the weights of a row's model."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from titanrun.components.optimizers.config import (
    AdamW8bitConfig,
    AdamWConfig,
    AdamWFp8Config,
    MuonConfig,
    OptimizerConfig,
)

OPTIMIZERS: dict[str, OptimizerConfig] = {
    "adamw": AdamWConfig(),
    "adamw, states in bf16": AdamWConfig(state_dtype="bfloat16"),
    "adamw_8bit": AdamW8bitConfig(),
    "adamw_fp8": AdamWFp8Config(),
    "muon": MuonConfig(),
}
WARM_UPDATES, UPDATES = 3, 10
FP32_BYTES = 4


def measure_optimizers(sizes: dict[str, int], device: torch.device) -> dict[str, Any]:
    """Return milliseconds of an update and GB/s of each optimizer.

    The traffic is what an update must at least read and write: weights and states both ways, and
    gradients once. That of Muon leaves out its products.
    """
    found: dict[str, Any] = {}
    for name, config in OPTIMIZERS.items():
        weights = create_weights(sizes, device)
        optimizer = config.load_builder()(config, parameters=list(weights.items()))
        for weight in weights.values():
            weight.grad = 1e-3 * torch.randn_like(weight)
        seconds = time_calls(optimizer.step, device)
        count = sum(weight.numel() for weight in weights.values())
        each = 3 * FP32_BYTES + 2 * config.compute_state_bytes(FP32_BYTES, is_in_layer=True)
        found[name] = {"ms": 1e3 * seconds, "gb_per_second": count * each / seconds / 1e9}
        del weights, optimizer
    return found


def create_weights(sizes: dict[str, int], device: torch.device) -> dict[str, nn.Parameter]:
    """Return weights with the shapes of a Llama."""
    dim, hidden = sizes["dim"], sizes["hidden_dim"]
    keys = dim // sizes["n_heads"] * sizes["n_kv_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (sizes["vocab_size"], dim),
        "output.weight": (sizes["vocab_size"], dim),
    }
    for layer in range(sizes["n_layers"]):
        shapes |= {
            f"layers.{layer}.attention.wq.weight": (dim, dim),
            f"layers.{layer}.attention.wk.weight": (keys, dim),
            f"layers.{layer}.attention.wv.weight": (keys, dim),
            f"layers.{layer}.attention.wo.weight": (dim, dim),
            f"layers.{layer}.feed_forward.w1.weight": (hidden, dim),
            f"layers.{layer}.feed_forward.w2.weight": (dim, hidden),
            f"layers.{layer}.feed_forward.w3.weight": (hidden, dim),
            f"layers.{layer}.attention_norm.weight": (dim,),
        }
    return {
        name: nn.Parameter(0.02 * torch.randn(shape, device=device))
        for name, shape in shapes.items()
    }


def time_calls(
    call: Callable[[], Any],
    device: torch.device,
    *,
    warm: int = WARM_UPDATES,
    calls: int = UPDATES,
) -> float:
    """Return the median seconds of a call, each measured to its end on the device."""
    taken = []
    for number in range(warm + calls):
        start = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        if number >= warm:
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)
