import torch

from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.tensor_checksums import (
    compute_checksums,
    find_differing_names,
    find_minority_ranks,
    find_mismatched_copies,
)


def test_each_bit_of_each_type_shows() -> None:
    kinds = {
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
        "fp64": torch.float64,
        "bool": torch.bool,
        "ids": torch.int64,
    }
    before = {name: torch.ones(5, dtype=kind) for name, kind in kinds.items()}
    assert (
        find_differing_names(
            compute_checksums(before),
            compute_checksums({name: tensor.clone() for name, tensor in before.items()}),
        )
        == []
    )
    for name, tensor in before.items():
        for bit in range(8 * tensor.element_size()):
            flipped = tensor.clone()
            bytes_ = flipped.view(torch.uint8)
            bytes_[tensor.element_size() + bit // 8] ^= 1 << bit % 8
            assert find_differing_names(
                compute_checksums(before), compute_checksums(before | {name: flipped})
            ) == [name]


def test_the_rank_whose_copy_differs_is_the_one_that_fewest_agree_with() -> None:
    assert find_minority_ranks({0: 5, 1: 5, 2: 7}) == [2]
    assert find_minority_ranks({0: 5, 1: 7}) == [0, 1]
    assert find_minority_ranks({0: 5, 1: 5}) == []


def test_a_tensor_that_is_there_once_has_no_copies() -> None:
    assert find_mismatched_copies({"weight": torch.ones(3)}, RankGroup()) == {}
