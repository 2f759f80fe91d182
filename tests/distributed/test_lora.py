"""Adapters on several ranks: the losses and gradients of one process, whoever shares, splits,
recomputes or compiles."""

import pytest

from tests.distributed.ranks import Case, alone, case, train
from titanrun.components.checkpoints.adapter_weights import is_adapter

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 5e-6
SHORT = (
    "training.steps=3",
    "lr_scheduler.warmup_steps=1",
    "validation.enable=false",
    "optimizer={eps: 1.0e-5, lr: 1.0e-2}",
)
SIZES = "dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: 2"
SMALL = (
    f"model={{name: llama3, flavor: debugmodel, {SIZES}, feed_forward: {{hidden_dim: 128}}}}",
    *SHORT,
)
MOE = "moe: {num_experts: 4, top_k: 2, hidden_dim: 128, num_shared_experts: 1}"
MIXTURE = (f"model={{name: qwen3, flavor: debugmodel_moe, {SIZES}, {MOE}}}", *SHORT)
ALL = "converters=[{name: lora, rank: 4}]"
LORA = (*SMALL, ALL)
WITH_DROPOUT = "converters=[{name: lora, rank: 4, dropout: 0.3}]"
DROPOUT = (*SMALL, WITH_DROPOUT)
MAGNITUDES = (*SMALL, "converters=[{name: lora, rank: 4, magnitude: true}]")
WHOLE_STREAM = "parallelism.enable_sequence_parallel=false"
ATTENTION = (*SMALL, "converters=[{name: lora, rank: 4, target_modules: [wq, wo]}]")
FLOAT8 = (
    *SMALL,
    "converters=[{name: float8_linear, emulate: true, recipe_name: rowwise}, {name: lora, "
    "rank: 4}]",
)
EXPERTS = (*MIXTURE, ALL)
STACKS = (*MIXTURE, "converters=[{name: lora, rank: 4, target_modules: [wq, experts, w1, w2]}]")
CLAMPED = "moe: {num_experts: 4, top_k: 2, hidden_dim: 128}"
BIASED = (
    f"model={{name: gpt_oss, flavor: debugmodel, {SIZES}, {CLAMPED}}}",
    *SHORT,
    "converters=[{name: lora, rank: 4, target_modules: [experts]}]",
)
TP2, EP2 = "parallelism.tensor_parallel_degree=2", "parallelism.expert_parallel_degree=2"
ETP2 = "parallelism.expert_tensor_parallel_degree=2"
CP2, DDP2 = "parallelism.context_parallel_degree=2", "parallelism.data_parallel_replicate_degree=2"
PP2 = ("parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=1F1B")
ZB2 = (
    "parallelism.pipeline_parallel_degree=2",
    "parallelism.pipeline_parallel_schedule=ZBVZeroBubble",
)
FULL, OPERATIONS = (
    "activation_checkpoint=full",
    "activation_checkpoint={name: selective, selective_ac_option: op}",
)
COMPILED = "compile={enable: true, backend: aot_eager}"

CASES = [
    case("tp2", nproc=2, base=LORA, overrides=[TP2], slow=True),
    case("fsdp2_recomputed", nproc=2, base=ATTENTION, overrides=[FULL], slow=True),
    case(
        "fsdp2_compiled_operations", nproc=2, base=LORA, overrides=[COMPILED, OPERATIONS], slow=True
    ),
    case("hsdp2x2", nproc=4, base=LORA, overrides=[DDP2], slow=True),
    case("ddp2", nproc=2, base=LORA, overrides=[DDP2], slow=True),
    case("fsdp2_tp2", nproc=4, base=LORA, overrides=[TP2], slow=True),
    case("fsdp2_pp2", nproc=4, base=ATTENTION, overrides=[*PP2], slow=True),
    case("zb2", nproc=2, base=(*LORA, "model.n_layers=4"), overrides=[*ZB2], slow=True),
    case("cp2", nproc=2, base=LORA, overrides=[CP2], slow=True),
    case("ep2", nproc=2, base=EXPERTS, overrides=[EP2], slow=True),
    case("tp2_shared_experts", nproc=2, base=EXPERTS, overrides=[TP2], slow=True),
    case("fsdp2_stacks", nproc=2, base=STACKS, slow=True),
    case("ep2_stacks", nproc=2, base=STACKS, overrides=[EP2], slow=True),
    case("tp2_dropout", nproc=2, base=DROPOUT, overrides=[TP2], slow=True),
    case(
        "tp2_dropout_recomputed_whole_stream",
        nproc=2,
        base=DROPOUT,
        overrides=[TP2, FULL, WHOLE_STREAM],
        slow=True,
    ),
    case("tp2_dropout_compiled", nproc=2, base=DROPOUT, overrides=[TP2, COMPILED], slow=True),
    case(
        "tp2_dropout_shared_experts",
        nproc=2,
        base=(*MIXTURE, WITH_DROPOUT),
        overrides=[TP2],
        slow=True,
    ),
    case("tp2_stacks", nproc=2, base=STACKS, overrides=[TP2], slow=True),
    case("fsdp2_tp2_stacks", nproc=4, base=STACKS, overrides=[TP2, FULL], slow=True),
    case("fsdp2_ep2_tp2_stacks", nproc=4, base=STACKS, overrides=[TP2, EP2], slow=True),
    case("fsdp2_ep2_etp2_stacks", nproc=4, base=STACKS, overrides=[TP2, EP2, ETP2], slow=True),
    case("tp2_biased_stacks", nproc=2, base=BIASED, overrides=[TP2], slow=True),
    case(
        "ep2_stacks_compiled",
        nproc=2,
        base=STACKS,
        overrides=[EP2, COMPILED, OPERATIONS],
        slow=True,
    ),
    case("fsdp2_tp2_magnitudes", nproc=4, base=MAGNITUDES, overrides=[TP2], slow=True),
    case(
        "fsdp2_pp2_magnitudes_recomputed",
        nproc=4,
        base=MAGNITUDES,
        overrides=[*PP2, FULL],
        slow=True,
    ),
    case("tp2_magnitudes_compiled", nproc=2, base=MAGNITUDES, overrides=[TP2, COMPILED], slow=True),
    case(
        "ep2_magnitudes",
        nproc=2,
        base=(*MIXTURE, "converters=[{name: lora, rank: 4, magnitude: true}]"),
        overrides=[EP2],
        slow=True,
    ),
    case("fsdp2_float8", nproc=2, base=FLOAT8, slow=True),
]


@pytest.mark.parametrize("layout", CASES)
def test_adapters_train_as_in_one_process(layout: Case) -> None:
    expected, found = alone(layout.base), train(layout.nproc, [*layout.base, *layout.overrides])
    assert [line["loss"] for line in found.numbers] == pytest.approx(
        [line["loss"] for line in expected.numbers], rel=LOSS_TOLERANCE
    )
    (reference,) = expected.gradients
    seen = {name: gradient for gradients in found.gradients for name, gradient in gradients.items()}
    assert seen.keys() == reference.keys()
    assert all(is_adapter(name) for name in seen)
    for name, gradient in seen.items():
        assert (gradient - reference[name]).norm() <= GRADIENT_TOLERANCE * max(
            reference[name].norm(), 1e-3
        ), name
