import torch

from titanrun.distributed.agreement import Ranks
from titanrun.distributed.checksums import checksums, differing, fewest, odd_copies


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
        differing(
            checksums(before), checksums({name: tensor.clone() for name, tensor in before.items()})
        )
        == []
    )
    for name, tensor in before.items():
        for bit in range(8 * tensor.element_size()):
            flipped = tensor.clone()
            bytes_ = flipped.view(torch.uint8)
            bytes_[tensor.element_size() + bit // 8] ^= 1 << bit % 8
            assert differing(checksums(before), checksums(before | {name: flipped})) == [name]


def test_the_rank_whose_copy_differs_is_the_one_that_fewest_agree_with() -> None:
    assert fewest({0: 5, 1: 5, 2: 7}) == [2]
    assert fewest({0: 5, 1: 7}) == [0, 1]
    assert fewest({0: 5, 1: 5}) == []


def test_a_tensor_that_is_there_once_has_no_copies() -> None:
    assert odd_copies({"weight": torch.ones(3)}, Ranks()) == {}
