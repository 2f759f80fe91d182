"""Context-parallel ranks share rows evenly, settings do what they say, and attention that cannot
see beyond its rank is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from tests.distributed.ranks import train
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.context_parallel import apply_context_parallel
from titanrun.distributed.context_parallel_layout import SequenceSharding
from titanrun.training.loop import TrainLoop

SHORT = (
    "training.steps=1",
    "lr_scheduler.warmup_steps=0",
    "training.global_batch_size=2",
    "validation={enable: false}",
    "model.n_layers=1",
)
CP2 = "parallelism.context_parallel_degree=2"


@pytest.mark.parametrize(("ranks", "pieces"), list(product((1, 2, 3, 4), (1, 2))))
def test_the_shares_of_all_ranks_make_the_row(ranks: int, pieces: int) -> None:
    row = torch.arange(24).view(1, 24, 1)
    rows = [SequenceSharding(ProcessGroup(rank, ranks), pieces) for rank in range(ranks)]
    shares = [sharing.shard(row) for sharing in rows]
    assert {share.shape for share in shares} == {(1, 24 // ranks, 1)}
    assert torch.equal(rows[0].unshard(shares, dim=1), row)


def test_two_pieces_give_every_rank_the_same_work() -> None:
    seen = [
        SequenceSharding(ProcessGroup(rank, 4), 2).shard(torch.arange(24).view(1, 24)).sum().item()
        for rank in range(4)
    ]
    assert seen == [6 * 11.5] * 4


class Alone(nn.Module):
    """A model whose attention is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": nn.Linear(4, 4)})


def test_attention_that_would_see_its_rank_alone_is_refused() -> None:
    with pytest.raises(ProblemsFound) as caught:
        apply_context_parallel(
            Alone(),
            SequenceSharding(ProcessGroup(0, 2), 2),
            "allgather",
            attention_classes=(nn.Bilinear,),
        )
    (problem,) = caught.value.problems
    assert problem.path == ("parallelism", "context_parallel_degree")


def look(trainer: TrainLoop) -> dict[str, Any]:
    """Which pieces of a row a rank has, how its attention sees the others, what the engine says of
    whole rows, and its speed."""
    engine = trainer.engine
    found: dict[str, Any] = {
        "attention": type(engine.model.get_submodule("layers.0.attention.backend")).__name__
    }
    found["pieces"] = (
        None if engine.sequence_sharding is None else engine.sequence_sharding.local_chunks
    )
    ids = torch.randint(2000, (2, 17), generator=torch.Generator().manual_seed(0))
    found["outputs"] = engine.forward(
        TokenBatch.from_sequences(ids), outputs=("logprobs", "entropy", "logits")
    )
    found["ranks_per_row"] = trainer.throughput.ranks_per_sequence
    return found


@pytest.mark.parametrize(
    ("overrides", "attention", "pieces"),
    [
        ([], "AllGatherKVAttention", ([0, 3], [1, 2])),
        (["parallelism.context_parallel_load_balancer=null"], "AllGatherKVAttention", ([0], [1])),
        (
            ["parallelism.context_parallel_rotate_method=alltoall"],
            "UlyssesAttention",
            ([0, 3], [1, 2]),
        ),
    ],
    ids=["degree", "balancer", "method"],
)
def test_a_setting_does_what_it_says(
    overrides: list[str], attention: str, pieces: tuple[list[int], list[int]]
) -> None:
    seen = train(2, [*SHORT, CP2, *overrides], look=look).build_mask
    assert tuple(rank["pieces"] for rank in seen) == pieces
    assert {rank["attention"] for rank in seen} == {attention}
    assert {rank["ranks_per_row"] for rank in seen} == {2}


def test_the_engine_gives_every_rank_the_outputs_of_whole_rows() -> None:
    (expected,) = train(1, SHORT, look=look).build_mask
    outputs: dict[str, Tensor] = expected["outputs"]
    assert {name: tuple(found.shape) for name, found in outputs.items()} == {
        "logprobs": (2, 16),
        "entropy": (2, 16),
        "logits": (2, 16, 2048),
    }
    for rank in train(2, [*SHORT, CP2], look=look).build_mask:
        for name, output in outputs.items():
            torch.testing.assert_close(
                rank["outputs"][name],
                output,
                rtol=1e-4,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )
