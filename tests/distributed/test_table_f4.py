"""Rows of torchtitan's later table of integration tests about converters, optimizers, replaced
parts, param groups and conversations, under
its names; rows that the earlier table has too are in test_table_f1.py.

A row trains as one process does, in fp32, from overrides on the debug recipe with
recipes/parts/cpu.yaml.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.distributed.ranks import alone, train

# gradients of experts are sums in another order
TOLERANCE = 5e-5
# float8 has three bits behind the point: what differs in fp32's last bit may be rounded to the next
# of them
ROUNDED = 1e-4
SHORT = ("training.steps=3", "lr_scheduler.warmup_steps=1")
# Adam divides gradients that are little more than rounding by themselves
EPS = "optimizer.eps=1.0e-5"
TP2, PP2, EP4 = (
    f"parallelism.{name}_parallel_degree={degree}"
    for name, degree in (("tensor", 2), ("pipeline", 2), ("expert", 4))
)
ONE_BEHIND = "parallelism.pipeline_parallel_schedule=1F1B"
FLOAT8 = "{name: float8_linear, emulate: true, filter_fqns: [output]}"
SIZES = (
    "dim: 64, n_heads: 4, n_layers: 2, moe: {num_experts: 8, top_k: 2, hidden_dim: 64, "
    "num_shared_experts: 1}"
)
LATENT = "kv_lora_rank: 16, qk_nope_head_dim: 8, qk_rope_head_dim: 8, v_head_dim: 8"
GROUPS = (
    "{match: ['*.router.*'], lr: 1.0e-4}",
    "{match: ['*.experts.*'], lr: 3.0e-4, weight_decay: 0.0}",
    "{match: ['*norm*'], weight_decay: 0.0}",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of the table: ranks, overrides, what also applies to the one process it is compared
    with, and the numbers that agree."""

    nproc: int
    overrides: tuple[str, ...]
    base: tuple[str, ...]
    tolerance: float
    numbers: tuple[str, ...]


def row(
    name: str,
    nproc: int,
    *overrides: str,
    base: tuple[str, ...],
    tolerance: float = TOLERANCE,
    numbers: tuple[str, ...] = ("loss", "grad_norm"),
) -> Any:
    """One row for `pytest.mark.parametrize`."""
    return pytest.param(Row(nproc, overrides, (*SHORT, *base), tolerance, numbers), id=name)


ROWS = [
    row("optimizer_bf16_states", 2, base=("optimizer.state_dtype=bfloat16", EPS)),
    row(
        "override_fused_swiglu",
        4,
        TP2,
        base=(
            'replace=[{match: "layers.*.feed_forward", with: {name: gated_feed_forward, '
            "activation: silu}}]",
        ),
    ),
    # experts are run by one grouped product as they are
    row(
        "override_fused_grouped_experts",
        4,
        *(TP2, EP4),
        base=(
            f"model={{name: deepseek_v3, flavor: debugmodel, {SIZES}, {LATENT}}}",
            'replace=[{match: "layers.*.moe.shared_experts", with: {name: gated_feed_forward, '
            "activation: silu}}]",
            EPS,
        ),
    ),
    row(
        "float8_emulate_lora",
        8,
        *(TP2, PP2, ONE_BEHIND),
        base=(
            f"converters=[{FLOAT8}, {{name: lora, rank: 8, alpha: 16.0}}]",
            EPS,
            "optimizer.lr=1.0e-2",
        ),
        tolerance=ROUNDED,
        # gradients in float8 have two bits behind the point, and a pipeline's scales come from
        # other tokens
        numbers=("loss",),
    ),
    row(
        "sft",
        2,
        base=(
            "training.dataset={name: tiny_chat, packing: best_fit}",
            "model.attention.mask=block_causal",
            "validation.enable=false",
        ),
    ),
    row(
        "qwen3_moe_fsdp+tp+ep_param_groups",
        4,
        *(TP2, EP4),
        base=(
            f"model={{name: qwen3, flavor: debugmodel_moe, n_kv_heads: 2, {SIZES}}}",
            f"optimizer.param_groups=[{', '.join(GROUPS)}]",
            EPS,
        ),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ROWS)
def test_a_row_trains_as_one_process_does(entry: Row) -> None:
    found, expected = (
        train(entry.nproc, [*entry.base, *entry.overrides]).numbers,
        alone(entry.base).numbers,
    )
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert {name: ours[name] for name in entry.numbers} == pytest.approx(
            {name: theirs[name] for name in entry.numbers}, rel=entry.tolerance
        )
    assert expected[-1]["loss"] < expected[0]["loss"]
