"""Mixture of experts: a router sends each token to a few of many feed-forward layers (https://arxiv.org/abs/1701.06538).

Shapes: B batch, T tokens of a row, N = B * T tokens, D model width, E experts, G groups of experts, K experts of one token,
S = N * K slots (one token at one expert), F hidden width of an expert.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from titanrun.distributed.activation_checkpoint import is_recomputing
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_experts import GroupedExperts
from titanrun.models.shared.initialization import truncated_normal_

# a group's worth is the sum of its two best scores (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.1.2)
BEST_OF_A_GROUP = 2
# keeps the sum of a token's scores from being zero
TINY = 1e-20

Experts = Callable[[Tensor, Tensor], Tensor]
Exchange = Callable[[Experts, Tensor, Tensor], Tensor]


class Routing(NamedTuple):
    """Which experts each token goes to, and how much each of them counts."""

    gates_NK: Tensor
    experts_NK: Tensor


class Router(nn.Module):
    """Chooses `top_k` experts for each token. Scores are computed in fp32: bf16 ties would flip experts between ranks."""

    def __init__(self, config: MoeConfig, *, dim: int) -> None:
        super().__init__()
        self.config = config
        self.gate = nn.Linear(dim, config.num_experts, bias=config.gate_bias)

    def forward(
        self, x_ND: Tensor, bias_E: Tensor | None = None, *, in_turn: bool = False
    ) -> Routing:
        """The choice for each token; `bias_E` moves the choice but not the gates, `in_turn` deals experts out instead of choosing."""
        config = self.config
        scores_NE = self.scores(self.gate(x_ND))
        selection_NE = scores_NE if bias_E is None else scores_NE + bias_E
        if config.num_expert_groups is not None:
            selection_NE = self.within_best_groups(selection_NE)
        experts_NK = selection_NE.topk(config.top_k, dim=-1, sorted=False).indices
        if in_turn:
            experts_NK = (
                torch.arange(experts_NK.numel(), device=x_ND.device).view_as(experts_NK)
                % config.num_experts
            )
        gates_NK = scores_NE.gather(1, experts_NK)
        if config.route_norm:
            gates_NK = gates_NK / (gates_NK.sum(-1, keepdim=True) + TINY)
        return Routing(gates_NK * config.route_scale, experts_NK)

    def scores(self, logits_NE: Tensor) -> Tensor:
        """How well each expert suits each token, in fp32."""
        return (
            logits_NE.float().sigmoid()
            if self.config.score_func == "sigmoid"
            else logits_NE.float().softmax(-1)
        )

    def within_best_groups(self, selection_NE: Tensor) -> Tensor:
        """The scores with those of all but the best groups of each token at -inf."""
        grouped_NGe = selection_NE.unflatten(-1, (self.config.num_expert_groups, -1))
        worth_NG = grouped_NGe.topk(BEST_OF_A_GROUP, dim=-1).values.sum(-1)
        best_Ng = worth_NG.topk(self.config.num_limited_groups, dim=-1, sorted=False).indices
        excluded_NG = torch.ones_like(worth_NG, dtype=torch.bool).scatter(1, best_Ng, False)
        return grouped_NGe.masked_fill(excluded_NG.unsqueeze(-1), float("-inf")).flatten(1)


class Moe(nn.Module):
    """The layer: routed experts, and a shared one for every token if the config has it.

    `exchange(experts, slots_SD, counts_E)` runs the experts on slots sorted by expert; expert parallelism puts one in place that
    sends the slots to the ranks that hold their experts.
    """

    expert_bias: Tensor | None
    tokens_per_expert: Tensor

    def __init__(self, config: MoeConfig, *, dim: int, experts: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, dim=dim)
        self.experts: Any = GroupedExperts(config, dim=dim) if experts is None else experts
        shared_width = config.num_shared_experts * config.hidden_dim
        self.shared_experts = (
            FeedForward(dim=dim, hidden_dim=shared_width) if shared_width else None
        )
        self.exchange: Exchange = run_here
        self.deals_in_turn = False
        balanced = config.load_balance_coeff is not None
        self.register_buffer(
            "expert_bias",
            torch.zeros(config.num_experts, dtype=torch.float32) if balanced else None,
        )
        self.register_buffer(
            "tokens_per_expert",
            torch.zeros(config.num_experts, dtype=torch.float32),
            persistent=False,
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        routing = self.router(x_ND, self.expert_bias, in_turn=self.deals_in_turn)
        counts_E = count_slots(routing.experts_NK, self.config.num_experts)
        if torch.is_grad_enabled() and not is_recomputing():
            self.tokens_per_expert.add_(counts_E)
        out_ND = self.routed(x_ND, routing, counts_E)
        if self.shared_experts is not None:
            out_ND = out_ND + self.shared_experts(x_ND)
        return out_ND.view_as(x_BTD)

    def routed(self, x_ND: Tensor, routing: Routing, counts_E: Tensor) -> Tensor:
        """Each token through its experts, summed by their gates."""
        top_k = self.config.top_k
        order_S = routing.experts_NK.flatten().argsort(stable=True)
        slots_SD = x_ND[order_S // top_k]
        if self.config.score_before_experts:
            gates_S1 = routing.gates_NK.flatten()[order_S].unsqueeze(-1)
            slots_SD = (slots_SD.float() * gates_S1).type_as(x_ND)
        out_SD = self.exchange(self.experts, slots_SD, counts_E)
        out_NKD = out_SD[order_S.argsort()].unflatten(0, (-1, top_k))
        if self.config.score_before_experts:
            return out_NKD.sum(1)
        return torch.bmm(routing.gates_NK.unsqueeze(1), out_NKD.float()).squeeze(1).type_as(x_ND)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; the router, and what adds to the residual stream, at `into_stream_std`. Counters and bias become zero."""
        truncated_normal_(
            self.router.gate.weight, std=into_stream_std, bound=init.truncation, generator=generator
        )
        if self.router.gate.bias is not None:
            nn.init.zeros_(self.router.gate.bias)
        for layer in (self.experts, self.shared_experts):
            if layer is not None:
                layer.init_weights(init, into_stream_std=into_stream_std, generator=generator)
        self.tokens_per_expert.zero_()
        if self.expert_bias is not None:
            self.expert_bias.zero_()


def run_here(experts: Experts, slots_SD: Tensor, counts_E: Tensor) -> Tensor:
    """All experts are on this rank."""
    return experts(slots_SD, counts_E)


def count_slots(experts_NK: Tensor, num_experts: int) -> Tensor:
    """Slots of each expert [E], by comparison: bincount has no deterministic kernel on an accelerator."""
    every_expert = torch.arange(num_experts, device=experts_NK.device)
    return (experts_NK.reshape(-1, 1) == every_expert).sum(0)
