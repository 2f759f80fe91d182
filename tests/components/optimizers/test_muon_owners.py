"""Muon on ranks that share matrices: the steps of one process, and no work twice."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.distributed.gloo_ranks import call_on_ranks
from titanrun.components.optimizers import muon_owners
from titanrun.components.optimizers.config import MuonConfig
from titanrun.components.optimizers.muon import build_muon
from titanrun.components.optimizers.muon_owners import assign_owners, plan_buckets

STEPS, NEWTON_SCHULZ = 3, 5
# some do not divide by four ranks, one has fewer rows than ranks, several share a shape
SHAPES = [(8, 5), (8, 5), (5, 8), (7, 16), (3, 6), (16, 16), (8, 5), (4, 8, 5)]


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for number, shape in enumerate(SHAPES):
            drawn = torch.randn(shape, generator=generator)
            self.register_parameter(f"m{number}", nn.Parameter(drawn))
        self.bias = nn.Parameter(torch.randn(6, generator=generator))


class Orthogonalized(TorchDispatchMode):
    """Counts the matrices whose Newton-Schulz steps this process takes."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.baddbmm.default:
            self.products += args[0].size(0)
        return func(*args, **(kwargs or {}))

    @property
    def matrices(self) -> float:
        return self.products / (2 * NEWTON_SCHULZ * STEPS)


def stepped(model: nn.Module) -> dict[str, Tensor]:
    """The weights after some steps, and the matrices that this process orthogonalized a step."""
    config = MuonConfig(lr=0.05, weight_decay=0.1, ns_dtype="float32", ns_steps=NEWTON_SCHULZ)
    optimizer = build_muon(config, parameters=model.named_parameters())
    generator = torch.Generator().manual_seed(1)
    with Orthogonalized() as counted:
        for _ in range(STEPS):
            for parameter in model.parameters():
                drawn = torch.randn(parameter.shape, generator=generator)
                placed: Any = parameter
                parameter.grad = (
                    distribute_tensor(drawn, placed.device_mesh, placed.placements)
                    if isinstance(parameter, DTensor)
                    else drawn
                )
            optimizer.step()
    found = {
        name: value.full_tensor() if isinstance(value, DTensor) else value.detach()
        for name, value in model.named_parameters()
    }
    return found | {"matrices": torch.tensor(counted.matrices)}


def on_fsdp() -> dict[str, Tensor]:
    # three buckets and more
    muon_owners.BUCKET_BYTES = 1024
    model = Matrices()
    mesh: Any = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh, shard_placement_fn=split_experts_inside)
    return stepped(model)


def on_hsdp() -> dict[str, Tensor]:
    model = Matrices()
    mesh: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh, shard_placement_fn=split_experts_inside)
    return stepped(model)


def on_two_axes() -> dict[str, Tensor]:
    model = Matrices()
    mesh: Any = init_device_mesh("cpu", (2, 2))
    for name, parameter in list(model.named_parameters()):
        last = Shard(parameter.ndim - 1)
        split = distribute_tensor(parameter.detach(), mesh, [Shard(0), last])
        setattr(model, name, nn.Parameter(split))
    return stepped(model)


def split_experts_inside(parameter: Tensor) -> Shard:
    return Shard(1 if parameter.ndim == 3 else 0)


def num_matrices() -> int:
    return sum(shape[0] if len(shape) == 3 else 1 for shape in SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nproc", "layout", "times"), [(2, on_fsdp, 1), (4, on_fsdp, 1), (4, on_hsdp, 2)]
)
def test_each_matrix_is_orthogonalized_once_a_group_and_steps_are_those_of_one_process(
    nproc: int, layout: Any, times: int, tmp_path: Path
) -> None:
    expected = stepped(Matrices())
    assert expected.pop("matrices") == num_matrices()
    ranks = call_on_ranks(nproc, layout, tmp_path)
    counts = [float(found.pop("matrices")) for found in ranks]
    assert sum(counts) == times * num_matrices()
    assert min(counts) > 0
    for found in ranks:
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_matrices_split_over_two_axes_take_the_steps_of_one_process(tmp_path: Path) -> None:
    expected = stepped(Matrices())
    expected.pop("matrices")
    for found in call_on_ranks(4, on_two_axes, tmp_path):
        found.pop("matrices")
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_costly_matrices_go_to_the_least_loaded_ranks() -> None:
    # no partition of these has a smaller largest load than 17: they add up to 50
    costs = [10, 9, 8, 7, 6, 5, 5]
    owners = assign_owners(costs, 3)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in range(3)]
    assert max(loads) <= 4 / 3 * 17 and sum(loads) == 50
    assert assign_owners([5, 5, 5, 5], 4) == [0, 1, 2, 3]
    # one in turn would have 12 and 4
    assert assign_owners([8, *[1] * 8], 2) == [0, *[1] * 8]


def test_buckets_hold_all_matrices_once_and_at_most_their_limit() -> None:
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    buckets = plan_buckets(parameters, limit=600)
    held = [id(parameter) for bucket in buckets for parameter in bucket.parameters]
    assert sorted(held) == sorted(map(id, parameters)) and len(buckets) > 2
    for bucket in buckets:
        size = sum(4 * parameter.numel() for parameter in bucket.parameters)
        assert size <= 600 or len(bucket.parameters) == 1
