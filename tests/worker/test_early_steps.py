"""Updates inside the backward pass: the same as after it, with no gradient left behind."""

from typing import Any

import pytest
import torch

from tests.distributed.ranks import EXPERTS, alone, train
from titanrun.training.loop import TrainLoop

ONE_PASS = ("training.local_batch_size=8", "training.max_norm=null")
EARLY = "optimizer.early_step_in_backward=true"
SMALL = ("model.n_layers=2", "model.dim=32")
TP2 = "parallelism.tensor_parallel_degree=2"
TIED = "model.tie_word_embeddings=true"


def weights(trainer: TrainLoop) -> dict[str, Any]:
    """The weights and the optimizer's states, whole."""
    found = trainer.engine.named_state_tensors()
    return {
        name: tensor.full_tensor() if hasattr(tensor, "placements") else tensor.clone()
        for name, tensor in found.items()
    }


def agree(found: Any, expected: Any, *, rel: float) -> None:
    """Every logged number, every weight and every state."""
    assert len(found.numbers) == len(expected.numbers) == 5
    for ours, theirs in zip(found.numbers, expected.numbers, strict=True):
        assert ours == pytest.approx(theirs, rel=rel)
    assert found.gradients[0] == {}
    assert expected.gradients[0] != {}


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(SMALL, id="dense"),
        pytest.param((*SMALL, TIED), id="tied", marks=pytest.mark.slow),
        pytest.param(EXPERTS, id="experts", marks=pytest.mark.slow),
    ],
)
def test_early_steps_are_those_of_the_whole_optimizer_and_leave_no_gradient(
    base: tuple[str, ...],
) -> None:
    expected, found = (train(1, [*base, *ONE_PASS, *more], look=weights) for more in ([], [EARLY]))
    # the norm is summed in another order
    agree(found, expected, rel=1e-6)
    assert found.build_mask[0].keys() == expected.build_mask[0].keys()
    for name, tensor in found.build_mask[0].items():
        assert torch.equal(tensor, expected.build_mask[0][name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "rows", "layout"),
    [
        (2, 4, []),
        (2, 4, ["parallelism.data_parallel_replicate_degree=2"]),
        (2, 4, ["training.enable_cpu_offload=true"]),
        (2, 8, [TP2]),
        (4, 4, [TP2, "compile={enable: true, backend: aot_eager}"]),
        (2, 8, ["activation_checkpoint=full", "parallelism.context_parallel_degree=2"]),
    ],
    ids=["fsdp2", "ddp2", "fsdp2_offload", "tp2", "fsdp2_tp2_compiled", "cp2_recomputed"],
)
def test_early_steps_on_ranks_are_those_of_one_process(
    nproc: int, rows: int, layout: list[str]
) -> None:
    base = ("training.max_norm=null", "validation.local_batch_size=2")
    expected = alone((*base, "training.local_batch_size=8"))
    agree(
        train(nproc, [*base, f"training.local_batch_size={rows}", EARLY, *layout]),
        expected,
        rel=1e-5,
    )
