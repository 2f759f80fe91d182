"""An engine on ranks with different tokens."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.gloo_ranks import call_on_ranks
from tests.training.test_engine import CPU, batch, engine
from titanrun.components.data.token_batch import TokenBatch
from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims


def rows_of_ranks() -> list[TokenBatch]:
    """For each of two ranks four sequences, of which the first rank's have fewer valid tokens."""
    parts = batch(uneven=True).split(4)
    assert parts[0].num_valid_tokens().item() < parts[1].num_valid_tokens().item() - 5
    return parts


def compute_on_rank() -> dict[str, torch.Tensor]:
    """What a rank computes of its rows."""
    dims = resolve_parallel_dims(ParallelismConfig(), dist.get_world_size())
    assert dims is not None
    trained = engine()
    trained.meshes = ParallelMeshes(dims, CPU)
    own = rows_of_ranks()[dist.get_rank()]
    evaluated = trained.evaluate_loss(own)
    output = trained.forward_backward(own.split(2))
    return {
        "evaluated": evaluated.loss,
        "loss": output.loss,
        "valid_tokens": output.valid_tokens,
        "own": output.local_loss_sum,
        "gradient": trained.model.get_parameter("head.weight").grad,
    }


def test_every_token_of_all_ranks_weighs_the_same(tmp_path: Path) -> None:
    whole, parts = engine(), rows_of_ranks()
    expected = whole.forward_backward(parts)
    sums = [engine().forward_backward(part).loss_sum.item() for part in parts]
    found = call_on_ranks(2, compute_on_rank, tmp_path)
    for rank, (one, own_sum) in enumerate(zip(found, sums, strict=True)):
        assert one["valid_tokens"].item() == expected.valid_tokens.item(), rank
        assert one["loss"].item() == pytest.approx(expected.loss.item(), rel=1e-6)
        assert one["evaluated"].item() == pytest.approx(expected.loss.item(), rel=1e-6)
        assert one["own"].item() == pytest.approx(own_sum, rel=1e-6)
    # what FSDP would add up
    together = found[0]["gradient"] + found[1]["gradient"]
    torch.testing.assert_close(
        together, whole.model.get_parameter("head.weight").grad, rtol=1e-5, atol=1e-7
    )
