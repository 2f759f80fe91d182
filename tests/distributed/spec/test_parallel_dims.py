"""Mesh sizes and pipeline stages follow torchtitan's formulas, by worked cases and by counting."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.distributed.pipelining import schedules

from titanrun.distributed.config import ParallelismConfig
from titanrun.distributed.spec.parallel_dims import (
    ParallelDims,
    compute_common_divisors,
    get_cp_chunks_per_rank,
    resolve_parallel_dims,
)
from titanrun.distributed.spec.pipeline_stages import (
    PIPELINE_SCHEDULES,
    EndLayerCosts,
    can_split_into_rounds,
    compute_num_stages_for_layers,
    find_layer_split_problem,
    get_stages_for_rank,
    split_layers_into_stages,
)


def degrees(
    world: int,
    replicate: int,
    shard: int | str,
    context: int,
    tensor: int,
    pipeline: int,
    expert: int,
    expert_tensor: int,
) -> ParallelDims:
    section = ParallelismConfig.model_validate(
        {
            "data_parallel_replicate_degree": replicate,
            "data_parallel_shard_degree": shard,
            "context_parallel_degree": context,
            "tensor_parallel_degree": tensor,
            "pipeline_parallel_degree": pipeline,
            "expert_parallel_degree": expert,
            "expert_tensor_parallel_degree": expert_tensor,
        }
    )
    found = resolve_parallel_dims(section, world)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "shard", "batch", "loss", "fsdp", "efsdp"),
    [
        ((8, 1, "auto", 1, 1, 1, 1, 1), 8, 8, 8, 8, 8),
        ((8, 2, "auto", 2, 1, 1, 1, 1), 2, 4, 8, 4, 4),
        ((8, 1, 4, 1, 2, 1, 4, 1), 4, 4, 4, 4, 2),
        ((8, 1, 4, 1, 2, 1, 2, 2), 4, 4, 4, 4, 2),
        ((8, 1, 2, 1, 2, 2, 4, 1), 2, 2, 2, 2, 1),
        ((8, 1, 4, 1, 1, 2, 4, 1), 4, 4, 4, 4, 1),
        ((4, 4, 1, 1, 1, 1, 1, 1), 1, 4, 4, 1, 1),
    ],
    ids=str,
)
def test_meshes_have_the_sizes_of_the_worked_cases(
    written: tuple[int, int, int | str, int, int, int, int, int],
    shard: int,
    batch: int,
    loss: int,
    fsdp: int,
    efsdp: int,
) -> None:
    found = degrees(*written)
    assert found.world_size == written[0]
    assert (found.dp_shard, found.dp_size, found.loss_size, found.fsdp_size, found.efsdp_size) == (
        shard,
        batch,
        loss,
        fsdp,
        efsdp,
    )


def test_a_rank_reads_and_computes_what_its_coordinates_in_the_mesh_say() -> None:
    """Otherwise ranks that share sequences would read different ones."""
    dims = ParallelDims(pp=2, dp_replicate=3, dp_shard=2, cp=5, tp=3)
    shape = (dims.pp, dims.dp_replicate, dims.dp_shard, dims.cp, dims.tp)
    for rank in range(dims.world_size):
        pp, replicate, shard, *_ = np.unravel_index(rank, shape)
        assert dims.get_pp_rank(rank) == pp
        assert dims.get_dp_rank(rank) == np.ravel_multi_index((replicate, shard), (3, 2))


def test_an_axis_that_nobody_names_has_one_rank() -> None:
    assert ParallelDims().world_size == ParallelDims().fsdp_size == 1
    assert ParallelDims(tp=4).world_size == 4


@pytest.mark.parametrize(("balancer", "chunks"), [("headtail", 2), ("ptrr", 1), (None, 1)])
def test_only_headtail_gives_a_rank_two_chunks_of_a_sequence(
    balancer: str | None, chunks: int
) -> None:
    section = ParallelismConfig.model_validate({"context_parallel_load_balancer": balancer})
    assert get_cp_chunks_per_rank(section) == chunks


@pytest.mark.parametrize(
    ("counts", "divisors"),
    [
        ((12,), [1, 2, 3, 4, 6, 12]),
        ((12, 18), [1, 2, 3, 6]),
        ((7, 4), [1]),
        ((4096,), [2**power for power in range(13)]),
        # no run has more ranks than 4096
        ((4097,), [1, 17, 241]),
        ((2**40,), [2**power for power in range(13)]),
    ],
)
def test_sizes_that_fit_are_the_common_divisors(
    counts: tuple[int, ...], divisors: list[int]
) -> None:
    assert compute_common_divisors(*counts) == divisors


def test_expert_ranks_that_do_not_fit_leave_no_mesh() -> None:
    assert ParallelDims(dp_shard=2, ep=4).efsdp_size is None
    assert ParallelDims(dp_shard=6, ep=4).efsdp_size is None
    assert ParallelDims(dp_shard=2, cp=2, tp=2, ep=8).efsdp_size == 1


def test_shards_left_to_the_machine_are_unknown_without_its_ranks() -> None:
    section = ParallelismConfig.model_validate({"tensor_parallel_degree": 3})
    assert resolve_parallel_dims(section, None) is None
    assert resolve_parallel_dims(section, 8) is None
    assert resolve_parallel_dims(section, 9) == ParallelDims(dp_shard=3, tp=3)


@pytest.mark.parametrize(
    ("stages", "layers", "weights", "first_layers", "empty"),
    [
        (2, 6, EndLayerCosts(), [0, 3], 0),
        (4, 6, EndLayerCosts(), [0, 1, 3, 5], 0),
        (8, 6, EndLayerCosts(), [0, 0, 1, 2, 3, 4, 5, 6], 2),
        (3, 27, EndLayerCosts(), [0, 9, 19], 0),
        (4, 16, EndLayerCosts(), [0, 4, 9, 13], 0),
        (4, 32, EndLayerCosts(), [0, 8, 17, 25], 0),
        (8, 32, EndLayerCosts(), [0, 4, 9, 13, 17, 21, 25, 29], 0),
        (2, 3, EndLayerCosts(2, 2), [0, 2], 0),
        (4, 6, EndLayerCosts(2, 2), [0, 1, 4, 6], 1),
    ],
    ids=str,
)
def test_layers_are_split_as_in_the_worked_cases(
    stages: int, layers: int, weights: EndLayerCosts, first_layers: list[int], empty: int
) -> None:
    found = split_layers_into_stages(stages, layers, weights)
    assert [part.start for part in found] == first_layers
    assert sum(len(part) == 0 for part in found) == empty


def test_every_layer_has_one_stage_or_the_split_is_refused() -> None:
    for stages, layers, first, last in product(range(1, 9), range(1, 9), range(3), range(3)):
        weights = EndLayerCosts(first, last)
        if find_layer_split_problem(stages, layers, weights) is None:
            assert [
                layer
                for part in split_layers_into_stages(stages, layers, weights)
                for layer in part
            ] == list(range(layers))


@pytest.mark.parametrize(
    ("stages", "layers", "weights", "fault"),
    [
        (
            9,
            6,
            EndLayerCosts(),
            "9 pipeline stages need 9 layers, but there are 6 (embedding and head count as 2)",
        ),
        (
            4,
            6,
            EndLayerCosts(first=3),
            "the first of 4 stages takes 2 layers, but its embedding or head counts as 3",
        ),
        (
            4,
            6,
            EndLayerCosts(last=4),
            "the last of 4 stages takes 2 layers, but its embedding or head counts as 4",
        ),
    ],
)
def test_a_split_that_leaves_a_stage_empty_handed_is_put_into_words(
    stages: int, layers: int, weights: EndLayerCosts, fault: str
) -> None:
    assert find_layer_split_problem(stages, layers, weights) == fault


def test_stages_are_placed_in_a_loop_or_in_a_v() -> None:
    assert [get_stages_for_rank(rank, 2, 4, is_v_shaped=False) for rank in (0, 1)] == [
        (0, 2),
        (1, 3),
    ]
    assert [get_stages_for_rank(rank, 2, 4, is_v_shaped=True) for rank in (0, 1)] == [
        (0, 3),
        (1, 2),
    ]


def test_layers_per_stage_decide_how_many_stages_there_are() -> None:
    assert compute_num_stages_for_layers(6, EndLayerCosts(), layers_per_stage=2) == 4
    assert compute_num_stages_for_layers(7, EndLayerCosts(), layers_per_stage=2) == 5


SMALL = {"ranks": [2, 3], "each": [1, 2, 3], "microbatches": [1, 2, 3, 4, 5, 6, 7]}


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
def test_schedules_take_the_stages_and_microbatches_that_torch_takes(name: str) -> None:
    shape = PIPELINE_SCHEDULES[name]
    for ranks, each, microbatches in product(*SMALL.values()):
        stages_fit = (
            each == 1 if shape.is_single_stage else each == 2 if shape.is_v_shaped else True
        )
        microbatches_fit = (
            not shape.needs_microbatch_per_stage or microbatches >= ranks * each
        ) and (not shape.needs_equal_rounds or can_split_into_rounds(microbatches, ranks))
        assert torch_takes(name, ranks, each, microbatches) == (stages_fit and microbatches_fit), (
            ranks,
            each,
            microbatches,
        )


class Stage:
    """As much of a torch pipeline stage as a schedule looks at before it runs."""

    def __init__(self, ranks: int, each: int, index: int) -> None:
        self.group_size, self.group_rank = ranks, 0
        self.num_stages, self.stage_index = ranks * each, index
        self.has_backward, self.device, self.submod = (
            False,
            torch.device("cpu"),
            torch.nn.Identity(),
        )
        self.is_first, self.is_last = index == 0, index == ranks * each - 1


def torch_takes(name: str, ranks: int, each: int, microbatches: int) -> bool:
    """Whether torch makes the schedule for the first of the ranks."""
    kind = schedules.get_schedule_class(name)
    shape = PIPELINE_SCHEDULES[name]
    placed = get_stages_for_rank(
        0, ranks, ranks * each, is_v_shaped=shape.is_v_shaped and each == 2
    )
    stages = [Stage(ranks, each, index) for index in placed]
    if shape.is_single_stage and each > 1:
        return False  # its constructor has room for one
    try:
        kind(stages[0] if shape.is_single_stage else stages, microbatches)
    except ValueError:
        return False
    return True
