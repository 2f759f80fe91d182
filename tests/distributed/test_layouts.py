"""Every layout of ranks trains as one process does, in fp32: losses, gradient norms, gradients, held-out losses."""

import pytest

from tests.distributed.ranks import Case, alone, case, train

LOSS_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 5e-6

CP2, CP4 = "parallelism.context_parallel_degree=2", "parallelism.context_parallel_degree=4"
UNBALANCED = "parallelism.context_parallel_load_balancer=null"
BY_HEADS = "parallelism.context_parallel_rotate_method=alltoall"

LAYOUTS = [
    case("fsdp2", nproc=2),
    case("fsdp4", nproc=4, slow=True),
    case("hsdp2x2", nproc=4, overrides=["parallelism.data_parallel_replicate_degree=2"]),
    case("ddp2", nproc=2, overrides=["parallelism.data_parallel_replicate_degree=2"]),
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
