"""AdamW of the bare loop, with clipping in the same kernels. It imports torch only."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

STATES = ("exp_avg", "exp_avg_sq")
LR, BETAS, ADAM_EPS, DECAY, MAX_NORM = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
Compile = Callable[..., Any]


def build_update(
    masters: dict[str, nn.Parameter],
    *,
    bf16_states: bool,
    device: torch.device,
    compile_lists: Compile | None,
) -> Callable[[Tensor], None]:
    """Build the function that clips and updates: one fused kernel, or lists for bf16 states."""
    weights = list(masters.values())
    mixes = bf16_states and any(weight.dtype == torch.float32 for weight in weights)
    if mixes and not updates_bf16_states(device):
        return build_bf16_state_update(masters, compile_lists)
    adam = torch.optim.AdamW(
        weights, lr=LR, betas=BETAS, eps=ADAM_EPS, weight_decay=DECAY, fused=True
    )
    if mixes:
        preset_bf16_states(adam)

    def update(norm: Tensor) -> None:
        adam.grad_scale = compute_scale(norm)
        adam.found_inf = torch.zeros((), device=device)
        adam.step()

    return update


def compute_scale(norm: Tensor) -> Tensor:
    """Return what gradients are divided by, which clips their norm."""
    return torch.clamp((norm.float() + 1e-6) / MAX_NORM, min=1.0)


def updates_bf16_states(device: torch.device) -> bool:
    """Return whether the fused kernel updates weights in fp32 with states in bf16."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return device.type == "cuda" and version >= (2, 12)


def preset_bf16_states(adam: torch.optim.AdamW) -> None:
    """Give each weight states in bf16, which the fused kernel of torch 2.12 and later updates."""
    for master in adam.param_groups[0]["params"]:
        zeros = {name: torch.zeros_like(master, dtype=torch.bfloat16) for name in STATES}
        adam.state[master] = {"step": torch.zeros((), device=master.device), **zeros}


def update_lists(
    weights: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    scalars: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Update weights in fp32 with states in bf16: compiled, each element is read and written once.

    The scalars are what gradients are divided by, and the corrections of the bias of both means.
    """
    scale, mean_correction, square_correction = scalars
    for w, grad, m, s in zip(weights, grads, means, squares, strict=True):
        g = grad / scale
        mean = m.float().lerp(g, 1 - BETAS[0])
        square = s.float() * BETAS[1] + (1 - BETAS[1]) * g * g
        m.copy_(mean)
        s.copy_(square)
        root = (square / square_correction).sqrt() + ADAM_EPS
        w.mul_(1 - LR * DECAY).sub_(LR / mean_correction * mean / root)


def find_list(name: str) -> str:
    """Return the list that a weight belongs to: its layer, or what comes before or after layers."""
    top, *rest = name.split(".")
    return f"{top}.{rest[0]}" if top == "layers" else ""


def build_bf16_state_update(
    masters: dict[str, nn.Parameter], compile_lists: Compile | None
) -> Callable[[Tensor], None]:
    """Build AdamW with bf16 states as a compiled call for the list of weights of each layer.

    Layers have the same shapes: all share one graph, which compiles in seconds. A list of all
    weights of a large model would take minutes.
    """
    by_list = sorted(masters, key=find_list)
    lists = [[masters[n] for n in names] for _, names in groupby(by_list, key=find_list)]
    states = [
        [[torch.zeros_like(w, dtype=torch.bfloat16) for w in weights] for _ in STATES]
        for weights in lists
    ]
    count = torch.zeros((), device=lists[0][0].device)
    run = update_lists
    if compile_lists is not None:
        run = compile_lists(update_lists, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def update(norm: Tensor) -> None:
        count.add_(1)
        scalars = compute_scale(norm), 1 - BETAS[0] ** count, 1 - BETAS[1] ** count
        for weights, (means, squares) in zip(lists, states, strict=True):
            run(weights, [w.grad for w in weights], means, squares, scalars)

    return update
