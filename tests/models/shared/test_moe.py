"""The mixture-of-experts layer against a plain loop over tokens in float64, and the bias that
balances it."""

import pytest
import torch
from torch import Generator
from torch.nn.functional import silu
from torch.utils._python_dispatch import TorchDispatchMode

from titanrun.distributed.activation_checkpoint import apply_full_ac
from titanrun.distributed.config import FullActivationCheckpointConfig
from titanrun.distributed.row_permutation import invert_permutation, permute_rows
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig, find_moe_problems
from titanrun.models.shared.moe import Moe, sum_outputs_by_product, sum_outputs_elementwise
from titanrun.models.shared.moe_load_balance import LoadBalancer, get_moe_layers

PLAIN = {
    "num_experts": 8,
    "top_k": 2,
    "hidden_dim": 24,
    "num_shared_experts": 0,
    "score_func": "softmax",
    "route_norm": False,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": False,
    "num_expert_groups": None,
    "num_limited_groups": None,
    "load_balance_coeff": 1e-3,
}
SHAPES = {
    "softmax, scores after": {},
    "normalised and scaled": {"route_norm": True, "route_scale": 2.5},
    "sigmoid, scores before, shared experts": {
        "score_func": "sigmoid",
        "score_before_experts": True,
        "num_shared_experts": 2,
    },
    "limited to groups": {"num_expert_groups": 4, "num_limited_groups": 2, "score_func": "sigmoid"},
    "router with bias": {"gate_bias": True},
    "one expert": {"top_k": 1, "score_func": "sigmoid", "score_before_experts": True},
}
DIM = 16


def layer(seed=0, **fields):
    moe = Moe(MoeConfig(**{**PLAIN, **fields}), dim=DIM)
    generator = Generator().manual_seed(seed)
    moe.init_weights(DecoderInitConfig(linear_std=0.3), residual_std=0.3, generator=generator)
    for parameter in moe.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(generator=generator)
    moe.expert_bias.normal_(0, 0.2, generator=generator)
    return moe


def by_hand(moe, x_TD):
    """One token and one expert after the other, in float64."""
    config, weights = (
        moe.config,
        {name: tensor.double() for name, tensor in moe.state_dict().items()},
    )
    rows = []
    for x_D in x_TD.double():
        logits_E = weights["router.gate.weight"] @ x_D + weights.get("router.gate.bias", 0.0)
        scores_E = logits_E.sigmoid() if config.score_func == "sigmoid" else logits_E.softmax(0)
        selection = (scores_E + weights["expert_bias"]).tolist()
        allowed = range(config.num_experts)
        if config.num_expert_groups is not None:
            size = config.num_experts // config.num_expert_groups
            worth = [
                sum(sorted(selection[g * size : (g + 1) * size])[-2:])
                for g in range(config.num_expert_groups)
            ]
            best = sorted(range(config.num_expert_groups), key=lambda g: -worth[g])[
                : config.num_limited_groups
            ]
            allowed = [expert for expert in allowed if expert // size in best]
        chosen = sorted(allowed, key=lambda expert: -selection[expert])[: config.top_k]
        gates = [scores_E[expert] for expert in chosen]
        if config.route_norm:
            gates = [gate / sum(gates) for gate in gates]
        out_D = torch.zeros(DIM, dtype=torch.float64)
        for expert, gate in zip(chosen, gates, strict=True):
            gate = gate * config.route_scale
            seen_D = x_D * gate if config.score_before_experts else x_D
            w1, w2, w3 = (weights[f"experts.w{n}"][expert] for n in (1, 2, 3))
            expert_D = w2 @ (silu(w1 @ seen_D) * (w3 @ seen_D))
            out_D = out_D + (expert_D if config.score_before_experts else gate * expert_D)
        if config.num_shared_experts:
            w1, w2, w3 = (weights[f"shared_experts.w{n}.weight"] for n in (1, 2, 3))
            out_D = out_D + w2 @ (silu(w1 @ x_D) * (w3 @ x_D))
        rows.append(out_D)
    return torch.stack(rows)


@pytest.mark.parametrize("use_grouped_mm", [True, False])
@pytest.mark.parametrize("fields", SHAPES.values(), ids=SHAPES.keys())
def test_every_token_gets_the_weighted_sum_of_its_experts(fields, use_grouped_mm):
    moe = layer(**fields, use_grouped_mm=use_grouped_mm)
    x_BTD = torch.randn(2, 20, DIM, generator=Generator().manual_seed(1))
    with torch.no_grad():
        out_BTD = moe(x_BTD)
    torch.testing.assert_close(
        out_BTD.flatten(0, 1).double(), by_hand(moe, x_BTD.flatten(0, 1)), atol=2e-5, rtol=1e-5
    )


def test_one_grouped_product_has_the_gradients_of_a_loop_over_experts():
    x_BTD = torch.randn(2, 20, DIM, generator=Generator().manual_seed(1))
    gradients = []
    for grouped in (True, False):
        moe = layer(use_grouped_mm=grouped)
        moe(x_BTD).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in moe.named_parameters()})
    for name, grad in gradients[0].items():
        assert grad.abs().max() > 0
        torch.testing.assert_close(
            grad, gradients[1][name], msg=lambda text, name=name: f"{name}: {text}"
        )


class RecordOps(TorchDispatchMode):
    """Records the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_no_gradient_of_a_slot_is_added_into_zeros():
    with RecordOps() as recorded:
        layer(top_k=3)(torch.randn(1, 12, DIM, requires_grad=True)).sum().backward()
    assert "aten::index.Tensor" in recorded.names
    assert not [name for name in recorded.names if "index_put" in name or "index_add" in name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_tokens_copies_are_added_in_their_order(dtype):
    generator = Generator().manual_seed(2)
    x_ND = torch.randn(12, DIM, generator=generator).to(dtype).requires_grad_()
    order_S = torch.randperm(36, generator=generator)
    grad_SD = torch.randn(36, DIM, generator=generator).to(dtype)
    slots_SD = permute_rows(x_ND, order_S, order_S.argsort(), copies=3)
    slots_SD.backward(grad_SD)
    assert torch.equal(slots_SD, x_ND[order_S // 3])
    slot_of_copy = {copy: slot for slot, copy in enumerate(order_S.tolist())}
    for token in range(12):
        first, second, third = (grad_SD[slot_of_copy[3 * token + k]].float() for k in range(3))
        # rounded once
        assert torch.equal(x_ND.grad[token], (first + second + third).to(dtype))


def test_the_inverse_of_a_permutation_needs_no_sort():
    order = torch.randperm(50, generator=Generator().manual_seed(0))
    assert torch.equal(invert_permutation(order), order.argsort())


def test_an_expert_without_tokens_gets_a_gradient_of_zeros():
    moe = layer(top_k=1)
    moe.expert_bias.copy_(torch.tensor([9.0, 0, 0, 0, 0, 0, 0, 0]))
    moe(torch.randn(1, 6, DIM)).sum().backward()
    assert moe.experts.w1.grad[1:].abs().max() == 0
    assert moe.tokens_per_expert.tolist() == [6, 0, 0, 0, 0, 0, 0, 0]


def test_forced_balance_deals_experts_out_in_turn():
    moe = layer()
    moe.forces_load_balance = True
    moe(torch.randn(1, 12, DIM))
    assert moe.tokens_per_expert.tolist() == [3.0] * 8


def test_tokens_are_counted_once_though_layers_are_computed_again():
    counts = []
    for wraps in (False, True):
        model = torch.nn.Module()
        model.layers = torch.nn.ModuleDict({"0": layer()})
        if wraps:
            apply_full_ac(FullActivationCheckpointConfig(), model=model)
        model.layers["0"](
            torch.randn(2, 20, DIM, generator=Generator().manual_seed(1), requires_grad=True)
        ).sum().backward()
        counts.append(get_moe_layers(model)[0].tokens_per_expert)
    assert counts[0].sum() == 2 * 20 * 2
    assert torch.equal(*counts)


def test_validation_counts_nothing():
    moe = layer()
    with torch.no_grad():
        moe(torch.randn(1, 6, DIM))
    assert moe.tokens_per_expert.sum() == 0


def test_the_bias_moves_towards_idle_experts_by_the_worked_numbers():
    # mean 4 over counts (8, 4, 2, 2): signs (-1, 0, 1, 1), mean 0.25, times 0.001
    moe = layer(num_experts=4, load_balance_coeff=0.001)
    moe.expert_bias.zero_()
    moe.tokens_per_expert.copy_(torch.tensor([8.0, 4, 2, 2]))
    balance = LoadBalancer([moe])
    balance.update()
    torch.testing.assert_close(
        moe.expert_bias, torch.tensor([-0.00125, -0.00025, 0.00075, 0.00075])
    )
    assert moe.tokens_per_expert.sum() == 0
    assert balance.get_metrics()["moe/imbalance"] == 2


def test_the_bias_is_moved_before_each_step_of_the_optimizer_and_told():
    moe, told = layer(), {}
    optimizer = torch.optim.SGD(moe.parameters(), lr=0.0)
    LoadBalancer([moe]).register_step_hook(
        optimizer, lambda name, value, reduce: told.update({name: value.item()})
    )
    before = moe.expert_bias.clone()
    moe(torch.randn(1, 6, DIM)).sum().backward()
    optimizer.step()
    assert not torch.equal(moe.expert_bias, before)
    assert set(told) == {
        "moe/imbalance",
        "moe/most_tokens_per_expert",
        "moe/least_tokens_per_expert",
    }


@pytest.mark.parametrize("add_up", [sum_outputs_by_product, sum_outputs_elementwise])
def test_weighted_outputs_in_bf16_are_added_in_fp32_and_rounded_once(add_up):
    generator = torch.Generator().manual_seed(0)
    gates_NK = torch.rand(16, 8, generator=generator)
    out_NKD = torch.rand(16, 8, 32, generator=generator).bfloat16()
    exact_ND = (gates_NK.double().unsqueeze(-1) * out_NKD.double()).sum(1)
    found_ND = add_up(gates_NK, out_NKD)
    assert found_ND.dtype == torch.bfloat16
    # half of the last of eight bits
    assert ((found_ND - exact_ND).abs() <= exact_ND * 2**-8 * (1 + 1e-4)).all()


def test_a_refused_step_leaves_the_bias_as_it_is():
    moe = layer()
    optimizer = torch.optim.AdamW(moe.parameters(), lr=0.0, fused=True)
    LoadBalancer([moe]).register_step_hook(optimizer, lambda name, value, reduce: None)
    before = moe.expert_bias.clone()
    for found_inf, moves in ((1.0, False), (0.0, True)):
        moe(torch.randn(1, 6, DIM)).sum().backward()
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        assert torch.equal(moe.expert_bias, before) is not moves
        assert moe.tokens_per_expert.sum() == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"top_k": 9}, "top_k 9 exceeds num_experts 8"),
        (
            {"num_expert_groups": 2},
            "expert groups need both num_expert_groups and num_limited_groups",
        ),
        (
            {"num_expert_groups": 3, "num_limited_groups": 1},
            "8 experts cannot be split into 3 groups of at least two",
        ),
        (
            {"num_expert_groups": 4, "num_limited_groups": 5},
            "5 groups of 2 experts contain fewer than the 2 experts of a token",
        ),
    ],
    ids=str,
)
def test_sizes_that_exclude_each_other_are_named(sizes, message):
    assert [problem.message for problem in find_moe_problems({**PLAIN, **sizes})] == [message]


@pytest.mark.parametrize("use_grouped_mm", [True, False])
def test_the_product_that_runs_is_the_one_the_config_asks_for(use_grouped_mm):
    moe = layer(use_grouped_mm=use_grouped_mm)
    with torch.profiler.profile(acc_events=True) as profile, torch.no_grad():
        moe(torch.randn(1, 6, DIM))
    assert any("grouped_mm" in event.key for event in profile.key_averages()) is use_grouped_mm
