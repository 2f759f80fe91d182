"""Experts on a GPU: grouped products against a loop, the same bits twice, no waits of the host."""

import torch
from torch import Generator, Tensor

from titanrun.models.shared.config import DecoderInitConfig, MoeConfig
from titanrun.models.shared.moe import Moe

DIM = 64


def built(device: torch.device, *, use_grouped_mm: bool = True) -> Moe:
    config = MoeConfig(
        num_experts=8,
        top_k=3,
        hidden_dim=48,
        num_shared_experts=1,
        score_func="softmax",
        route_norm=True,
        route_scale=1.0,
        gate_bias=False,
        score_before_experts=False,
        num_expert_groups=None,
        num_limited_groups=None,
        load_balance_coeff=1e-3,
        use_grouped_mm=use_grouped_mm,
    )
    moe = Moe(config, dim=DIM)
    moe.init_weights(
        DecoderInitConfig(linear_std=0.3), residual_std=0.3, generator=Generator().manual_seed(0)
    )
    return moe.to(device, torch.bfloat16)


def compute(moe: Moe) -> list[Tensor]:
    """The output, and the gradients of tokens and weights."""
    device = moe.experts.w1.device
    drawn = torch.randn(2, 128, DIM, generator=Generator().manual_seed(1)).bfloat16()
    x_BTD = drawn.to(device).requires_grad_()
    out = moe(x_BTD)
    slope = torch.randn(out.shape, generator=Generator().manual_seed(2)).to(out)
    return [out, *torch.autograd.grad(out, [x_BTD, *moe.parameters()], slope)]


def test_grouped_products_equal_loop(device: torch.device) -> None:
    grouped, looped = (compute(built(device, use_grouped_mm=each)) for each in (True, False))
    for ours, theirs in zip(grouped, looped, strict=True):
        assert (ours.float() - theirs.float()).norm() <= 2e-2 * theirs.float().norm()


def test_permute_backward_is_deterministic(device: torch.device) -> None:
    moe = built(device)
    for first, second in zip(compute(moe), compute(moe), strict=True):
        assert torch.equal(first, second)


def test_moe_step_has_no_waits(device: torch.device) -> None:
    moe = built(device)
    drawn = torch.randn(2, 128, DIM, generator=Generator().manual_seed(3)).bfloat16()
    x_BTD = drawn.to(device).requires_grad_()
    for mode in ("default", "error"):
        if device.type != "cpu":
            torch.cuda.set_sync_debug_mode(mode)
        moe(x_BTD).float().sum().backward()
    if device.type != "cpu":
        torch.cuda.set_sync_debug_mode("default")
    # the tokens of both passes are counted, on the device
    assert int(moe.tokens_per_expert.sum()) == 2 * 2 * 128 * 3
