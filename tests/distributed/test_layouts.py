"""Every layout of ranks trains as one process does, in fp32: losses, gradient norms, gradients, held-out losses."""

import pytest

from tests.distributed.ranks import Case, alone, case, train

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 5e-6

CP2, CP4 = "parallelism.context_parallel_degree=2", "parallelism.context_parallel_degree=4"
UNBALANCED = "parallelism.context_parallel_load_balancer=null"
BY_HEADS = "parallelism.context_parallel_rotate_method=alltoall"
REPLICATED = "parallelism.data_parallel_replicate_degree=2"
TP2 = "parallelism.tensor_parallel_degree=2"
WHOLE_STREAM = "parallelism.enable_sequence_parallel=false"
ODD = "model.vocab_size=2049"
QWEN3 = "model={name: qwen3, flavor: debugmodel, n_layers: 2}"
QWEN3_MOE = (
    "model={name: qwen3, flavor: debugmodel_moe, n_layers: 2, moe: {num_experts: 8, top_k: 2, hidden_dim: 128, num_shared_experts: 1}}"
)

LAYOUTS = [
    case("fsdp2", nproc=2),
    case("fsdp4", nproc=4, slow=True),
    case("hsdp2x2", nproc=4, overrides=[REPLICATED]),
    case("ddp2", nproc=2, overrides=[REPLICATED]),
    case("ddp4", nproc=4, overrides=["parallelism.data_parallel_replicate_degree=4"], slow=True),
    case("fsdp2_always", nproc=2, overrides=["parallelism.fsdp_reshard_after_forward=always"], slow=True),
    case("fsdp2_never", nproc=2, overrides=["parallelism.fsdp_reshard_after_forward=never"], slow=True),
    case("fsdp2_offload", nproc=2, overrides=["training.enable_cpu_offload=true"], slow=True),
    case("fsdp2_recomputed", nproc=2, overrides=["activation_checkpoint=full"], slow=True),
    case("fsdp3_uneven", nproc=3, base=["training.global_batch_size=6"], slow=True),
    case("fsdp2_tied", nproc=2, base=["model.tie_word_embeddings=true"], slow=True),
    case("fsdp2_unclipped", nproc=2, base=["training.max_norm=null"], slow=True),
    case("cp2", nproc=2, overrides=[CP2]),
    case("cp2_unbalanced", nproc=2, overrides=[CP2, UNBALANCED], slow=True),
    case("cp2_alltoall", nproc=2, overrides=[CP2, BY_HEADS]),
    case("cp2_alltoall_unbalanced", nproc=2, overrides=[CP2, BY_HEADS, UNBALANCED], slow=True),
    case("cp2_recomputed", nproc=2, overrides=[CP2, "activation_checkpoint=full"], slow=True),
    case("cp2_alltoall_recomputed", nproc=2, overrides=[CP2, BY_HEADS, "activation_checkpoint=full"], slow=True),
    case("cp2_qwen3", nproc=2, overrides=[CP2], base=[QWEN3], slow=True),
    case("cp2_alltoall_qwen3", nproc=2, overrides=[CP2, BY_HEADS], base=[QWEN3], slow=True),
    case("cp2_qwen3_moe", nproc=2, overrides=[CP2], base=[QWEN3_MOE], slow=True),
    case("cp4", nproc=4, overrides=[CP4], slow=True),
    case("cp4_alltoall", nproc=4, overrides=[CP4, BY_HEADS], slow=True),
    case("fsdp2_cp2", nproc=4, overrides=[CP2], slow=True),
    case("hsdp2_cp2", nproc=4, overrides=[CP2, REPLICATED], slow=True),
    case("tp2", nproc=2, overrides=[TP2], slow=True),
    case("tp2_whole_stream", nproc=2, overrides=[TP2, WHOLE_STREAM], slow=True),
    case("tp2_whole_logits", nproc=2, overrides=[TP2, "parallelism.disable_loss_parallel=true"], slow=True),
    case("tp2_odd", nproc=2, overrides=[TP2], base=[ODD]),
    case("tp2_recomputed", nproc=2, overrides=[TP2, "activation_checkpoint=full"], slow=True),
    case("tp4", nproc=4, overrides=["parallelism.tensor_parallel_degree=4"], slow=True),
    case("tp4_odd", nproc=4, overrides=["parallelism.tensor_parallel_degree=4"], base=[ODD], slow=True),
    case("tp2_qwen3", nproc=2, overrides=[TP2], base=[QWEN3], slow=True),
    case("tp2_qwen3_moe", nproc=2, overrides=[TP2], base=[QWEN3_MOE]),
    case("tp2_qwen3_moe_whole_stream", nproc=2, overrides=[TP2, WHOLE_STREAM], base=[QWEN3_MOE], slow=True),
    case("fsdp2_tp2", nproc=4, overrides=[TP2], slow=True),
    case("fsdp2_tp2_odd", nproc=4, overrides=[TP2], base=[ODD], slow=True),
    case("fsdp2_tp2_offload", nproc=4, overrides=[TP2, "training.enable_cpu_offload=true"], slow=True),
    case("fsdp2_tp2_qwen3", nproc=4, overrides=[TP2], base=[QWEN3], slow=True),
    case("fsdp2_tp2_qwen3_moe", nproc=4, overrides=[TP2], base=[QWEN3_MOE], slow=True),
    case("hsdp2x2_tp2", nproc=8, overrides=[TP2, REPLICATED], slow=True),
    case("hsdp2x2_cp2", nproc=8, overrides=[CP2, REPLICATED], slow=True),
    case("cp2_tp2", nproc=4, overrides=[CP2, TP2], slow=True),
    case("cp2_tp2_alltoall", nproc=4, overrides=[CP2, TP2, BY_HEADS], slow=True),
    case("fsdp2_cp2_tp2", nproc=8, overrides=[CP2, TP2], slow=True),
    case("fsdp2_cp2_tp2_qwen3_moe", nproc=8, overrides=[CP2, TP2], base=[QWEN3_MOE], slow=True),
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_trains_as_one_process_does(layout: Case) -> None:
    expected, found = alone(layout.base), train(layout.nproc, [*layout.base, *layout.overrides])
    assert len(found.numbers) == len(expected.numbers) == 5
    for step, (ours, theirs) in enumerate(zip(found.numbers, expected.numbers, strict=True), start=1):
        assert ours == pytest.approx(theirs, rel=LOSS_TOLERANCE), f"step {step}"
    (reference,) = expected.gradients
    seen = set()
    for gradients in found.gradients:
        for name, gradient in gradients.items():
            difference = (gradient - reference[name]).abs().max() / reference[name].abs().max()
            assert difference <= GRADIENT_TOLERANCE, f"{name}: {difference}"
            seen.add(name)
    assert seen == reference.keys()
