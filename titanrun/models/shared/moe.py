"""Mixture of experts: a router sends each token to a few of many feed-forward layers.

Described in https://arxiv.org/abs/1701.06538.

Shapes: B batch, T tokens of a sequence, N = B * T tokens, D model width, E experts, G groups of
experts, K experts of one token, S = N * K slots (one token at one expert), F hidden width of an
expert.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor, nn

from titanrun.distributed.activation_checkpoint import is_recomputing
from titanrun.distributed.row_permutation import invert_permutation, permute_rows
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig, unwrap_auto
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_experts import GroupedExperts
from titanrun.models.shared.weight_init import truncated_normal_

# a group's score is the sum of its two best scores (DeepSeek-V3, https://arxiv.org/abs/2412.19437,
# section 2.1.2)
SCORES_PER_GROUP = 2
# avoids a division by zero if all scores of a token are zero
SCORE_SUM_EPSILON = 1e-20

ExpertsForward = Callable[[Tensor, Tensor], Tensor]
DispatchFn = Callable[[ExpertsForward, Tensor, Tensor], Tensor]


class Routing(NamedTuple):
    """Experts of each token, and their weights."""

    gates_NK: Tensor
    experts_NK: Tensor


class Router(nn.Module):
    """Router of each token to `top_k` experts.

    Scores are computed in fp32: ties in bf16 would select different experts on different ranks.
    """

    def __init__(self, config: MoeConfig, *, dim: int) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(
            dim, unwrap_auto(config.num_experts), bias=unwrap_auto(config.gate_bias)
        )

    def forward(
        self, x_ND: Tensor, bias_E: Tensor | None = None, *, forces_load_balance: bool = False
    ) -> Routing:
        """Return the routing of each token.

        Args:
            x_ND: tokens.
            bias_E: bias of the selection that does not affect the gates.
            forces_load_balance: distribute tokens over experts in turn.
        """
        config = self.config
        scores_NE = self.compute_scores(self.gate(x_ND))
        selection_NE = scores_NE if bias_E is None else scores_NE + bias_E
        if config.num_expert_groups is not None:
            selection_NE = self.mask_other_groups(selection_NE)
        experts_NK = selection_NE.topk(unwrap_auto(config.top_k), dim=-1, sorted=False).indices
        if forces_load_balance:
            slots_NK = torch.arange(experts_NK.numel(), device=x_ND.device).view_as(experts_NK)
            experts_NK = slots_NK % unwrap_auto(config.num_experts)
        gates_NK = scores_NE.gather(1, experts_NK)
        if config.route_norm:
            gates_NK = gates_NK / (gates_NK.sum(-1, keepdim=True) + SCORE_SUM_EPSILON)
        return Routing(gates_NK * unwrap_auto(config.route_scale), experts_NK)

    def compute_scores(self, logits_NE: Tensor) -> Tensor:
        """Return the score of each expert for each token, in fp32."""
        return (
            logits_NE.float().sigmoid()
            if self.config.score_func == "sigmoid"
            else logits_NE.float().softmax(-1)
        )

    def mask_other_groups(self, selection_NE: Tensor) -> Tensor:
        """Set the scores outside of each token's best groups to -inf."""
        groups, limited = self.config.num_expert_groups, unwrap_auto(self.config.num_limited_groups)
        assert limited is not None, "the config requires both for groups"
        grouped_NGe: Tensor = selection_NE.unflatten(-1, (groups, -1))
        scores_NG = grouped_NGe.topk(SCORES_PER_GROUP, dim=-1).values.sum(-1)
        best_Ng = scores_NG.topk(limited, dim=-1, sorted=False).indices
        excluded_NG = torch.ones_like(scores_NG, dtype=torch.bool).scatter(1, best_Ng, False)
        return grouped_NGe.masked_fill(excluded_NG.unsqueeze(-1), float("-inf")).flatten(1)


def sum_outputs_by_product(gates_NK: Tensor, out_NKD: Tensor) -> Tensor:
    """Return the sum of each token's outputs, weighted by its gates in fp32: [N, D]."""
    return torch.bmm(gates_NK.unsqueeze(1), out_NKD.float()).squeeze(1).type_as(out_NKD)


def sum_outputs_elementwise(gates_NK: Tensor, out_NKD: Tensor) -> Tensor:
    """Return the same sum without a matrix product: compiled, it is one kernel."""
    return (gates_NK.unsqueeze(-1) * out_NKD.float()).sum(1).type_as(out_NKD)


class Moe(nn.Module):
    """Mixture-of-experts layer: routed experts, and a shared one if the config has it.

    `token_dispatcher(experts, slots_SD, counts_E)` runs the experts on slots sorted by expert.
    Expert parallelism installs one that sends the slots to the ranks that hold their experts.
    `counts_inference` counts forward passes without gradients in `tokens_per_expert`, too.
    """

    # attributes that are replaced by a compiled function
    compiled_functions: ClassVar[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
        {"sum_outputs": sum_outputs_elementwise}
    )
    expert_bias: Tensor | None
    tokens_per_expert: Tensor

    def __init__(self, config: MoeConfig, *, dim: int, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, dim=dim)
        self.experts: Any = GroupedExperts(config, dim=dim) if experts is None else experts
        num_experts = unwrap_auto(config.num_experts)
        shared_width = unwrap_auto(config.num_shared_experts) * unwrap_auto(config.hidden_dim)
        self.shared_experts = (
            FeedForward(dim=dim, hidden_dim=shared_width) if shared_width else None
        )
        self.token_dispatcher: DispatchFn = run_experts_locally
        self.sum_outputs: Callable[[Tensor, Tensor], Tensor] = sum_outputs_by_product
        self.forces_load_balance = False
        self.counts_inference = False
        balanced = config.load_balance_coeff is not None
        self.register_buffer(
            "expert_bias",
            torch.zeros(num_experts, dtype=torch.float32) if balanced else None,
        )
        self.register_buffer(
            "tokens_per_expert",
            torch.zeros(num_experts, dtype=torch.float32),
            persistent=False,
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the output [B, T, D]. In training it counts the tokens of each expert."""
        x_ND = x_BTD.flatten(0, 1)
        routing: Routing = self.router(
            x_ND, self.expert_bias, forces_load_balance=self.forces_load_balance
        )
        counts_E = count_slots(routing.experts_NK, unwrap_auto(self.config.num_experts))
        if (torch.is_grad_enabled() or self.counts_inference) and not is_recomputing():
            self.tokens_per_expert.add_(counts_E)
        out_ND = self.run_routed_experts(x_ND, routing, counts_E)
        if self.shared_experts is not None:
            out_ND = out_ND + self.shared_experts(x_ND)
        return out_ND.view_as(x_BTD)

    def run_routed_experts(self, x_ND: Tensor, routing: Routing, counts_E: Tensor) -> Tensor:
        """Return the experts' outputs for each token, summed with their gates: [N, D]."""
        top_k = unwrap_auto(self.config.top_k)
        order_S = routing.experts_NK.flatten().argsort(stable=True)
        inverse_S = invert_permutation(order_S)
        slots_SD = permute_rows(x_ND, order_S, inverse_S, copies=top_k)
        if self.config.score_before_experts:
            gates_S1 = routing.gates_NK.flatten()[order_S].unsqueeze(-1)
            slots_SD = (slots_SD.float() * gates_S1).type_as(x_ND)
        out_SD = self.token_dispatcher(self.experts, slots_SD, counts_E)
        out_NKD: Tensor = permute_rows(out_SD, inverse_S, order_S).unflatten(0, (-1, top_k))
        if self.config.score_before_experts:
            return out_NKD.sum(1)
        return self.sum_outputs(routing.gates_NK, out_NKD)

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights: the router and residual outputs with `residual_std`.

        Counters and bias become zero.
        """
        truncated_normal_(
            self.router.gate.weight, std=residual_std, bound=init.truncation, generator=generator
        )
        if self.router.gate.bias is not None:
            nn.init.zeros_(self.router.gate.bias)
        for layer in (self.experts, self.shared_experts):
            if layer is not None:
                layer.init_weights(init, residual_std=residual_std, generator=generator)
        self.tokens_per_expert.zero_()
        if self.expert_bias is not None:
            self.expert_bias.zero_()


def run_experts_locally(experts: ExpertsForward, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
    """Run the experts, which are all on this rank."""
    return experts(slots_SD, counts_E)


def count_slots(experts_NK: Tensor, num_experts: int) -> Tensor:
    """Count the slots of each expert [E] by comparison.

    bincount has no deterministic kernel on an accelerator.
    """
    every_expert = torch.arange(num_experts, device=experts_NK.device)
    return (experts_NK.reshape(-1, 1) == every_expert).sum(0)
