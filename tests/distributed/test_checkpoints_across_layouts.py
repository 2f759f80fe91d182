"""What one layout saves, every other loads: the same bits of weights and optimizer state, and the
same losses from there on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import EXPERTS, train
from titanrun.components.checkpoints.dcp_io import read_tensor_metadata, read_tensors
from titanrun.distributed.dtensor import full_tensor
from titanrun.training.loop import TrainLoop

SAVING = (
    "checkpoint={enable: true, interval: 3}",
    "model.n_layers=2",
    "lr_scheduler.total_steps=5",
    "validation.enable=false",
)
PIPELINE = ("parallelism.pipeline_parallel_degree=2",)
V_SHAPED = (*PIPELINE, "parallelism.pipeline_parallel_schedule=ZBVZeroBubble")
EP2 = (*EXPERTS, "parallelism.expert_parallel_degree=2")
ETP2 = (*EP2, "parallelism.tensor_parallel_degree=2", "parallelism.expert_tensor_parallel_degree=2")
TIED = ("model.tie_word_embeddings=true",)
TENSOR = ("parallelism.tensor_parallel_degree=2",)
REPLICATED = ("parallelism.data_parallel_replicate_degree=2",)
EIGHT_BITS = "optimizer=adamw_8bit"
CONTEXT = ("parallelism.context_parallel_degree=2",)


def saved(folder: Path, step: int) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whole."""
    checkpoint = folder / "checkpoint" / f"step-{step}"
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype)
        for name, layout in read_tensor_metadata(checkpoint).items()
    }
    read_tensors(checkpoint, tensors)
    return tensors


def tensors(trainer: TrainLoop) -> dict[str, Tensor]:
    """Weights and optimizer state of a rank's trainer, whole."""
    return {
        name: full_tensor(tensor) for name, tensor in trainer.engine.named_state_tensors().items()
    }


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((2, ()), (1, ())),
        ((2, PIPELINE), (1, ())),
        pytest.param((1, ()), (2, V_SHAPED), marks=pytest.mark.slow),
        pytest.param((4, PIPELINE), (2, V_SHAPED), marks=pytest.mark.slow),
        pytest.param((1, ()), (2, REPLICATED), marks=pytest.mark.slow),
        pytest.param((4, REPLICATED), (2, ()), marks=pytest.mark.slow),
        pytest.param((2, TENSOR), (1, ()), marks=pytest.mark.slow),
        pytest.param((2, TENSOR), (2, ()), marks=pytest.mark.slow),
        pytest.param((4, TENSOR), (2, TENSOR), marks=pytest.mark.slow),
        pytest.param((2, CONTEXT), (1, ()), marks=pytest.mark.slow),
        pytest.param((1, ()), (4, CONTEXT), marks=pytest.mark.slow),
        pytest.param((2, EP2), (1, EXPERTS), marks=pytest.mark.slow),
        pytest.param((1, EXPERTS), (2, EP2), marks=pytest.mark.slow),
        pytest.param((4, EP2), (2, EXPERTS), marks=pytest.mark.slow),
        pytest.param((4, ETP2), (1, EXPERTS), marks=pytest.mark.slow),
        pytest.param((4, (*TENSOR, EIGHT_BITS)), (2, (EIGHT_BITS,)), marks=pytest.mark.slow),
        pytest.param((4, (*TIED, *PIPELINE)), (1, TIED), marks=pytest.mark.slow),
        pytest.param((1, TIED), (2, (*TIED, *PIPELINE)), marks=pytest.mark.slow),
        pytest.param((2, (*TIED, *PIPELINE)), (4, (*TIED, *V_SHAPED)), marks=pytest.mark.slow),
    ],
    ids=[
        "fsdp2-alone",
        "pp2-alone",
        "alone-pp2",
        "fsdp2_pp2-pp2",
        "alone-ddp2",
        "hsdp2x2-fsdp2",
        "tp2-alone",
        "tp2-fsdp2",
        "fsdp2_tp2-tp2",
        "cp2-alone",
        "alone-fsdp2_cp2",
        "ep2-alone",
        "alone-ep2",
        "efsdp2_ep2-fsdp2",
        "ep2_etp2-alone",
        "fsdp2_tp2-fsdp2-8bit",
        "tied_fsdp2_pp2-alone",
        "tied_alone-pp2",
        "tied_pp2-fsdp2_pp2",
    ],
)
def test_a_run_goes_on_in_another_layout(
    tmp_path: Path, first: tuple[int, Sequence[str]], then: tuple[int, Sequence[str]]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    expected = train(first[0], [*first[1], *SAVING], folder=whole).numbers
    train(first[0], [*first[1], *SAVING, "training.steps=3"], folder=cut)
    before = saved(cut, 3)
    found_by_rank = train(
        then[0], [*then[1], *SAVING, "training.steps=3"], folder=cut, look=tensors
    ).build_mask
    assert {name for loaded in found_by_rank for name in loaded} == before.keys()
    for loaded in found_by_rank:
        assert [name for name in loaded if not torch.equal(loaded[name], before[name])] == []
    found = train(then[0], [*then[1], *SAVING], folder=cut).numbers
    assert len(found) == len(expected) == 5
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
