from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.distributed.gloo_ranks import call_on_ranks
from titanrun.distributed.grad_norm import (
    clip_grads_with_norm_,
    compute_grad_norm,
    needs_full_gradient,
)


def gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((64, 64), (1000,), ())]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-6)])
def test_the_norm_is_that_of_all_gradients_in_float64(dtype: torch.dtype, tolerance: float) -> None:
    given = gradients(dtype)
    norm = compute_grad_norm(given)
    exact = torch.cat([gradient.double().flatten() for gradient in given]).norm()
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(exact.item(), rel=tolerance)


def test_the_norm_in_fp32_is_torchs_bit_for_bit() -> None:
    given = gradients(torch.float32)
    assert torch.equal(compute_grad_norm(given), torch.nn.utils.get_total_norm(given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_scales_down_and_never_up(dtype: torch.dtype, max_norm: float) -> None:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients(dtype)]
    for parameter, gradient in zip(parameters, gradients(dtype), strict=True):
        parameter.grad = gradient.clone()
    norm = compute_grad_norm(gradients(dtype))
    clip_grads_with_norm_(parameters, total_norm=norm, max_norm=max_norm)
    clipped = compute_grad_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )
    assert clipped.item() == pytest.approx(
        min(max_norm, norm.item()), rel=1e-2 if dtype == torch.bfloat16 else 1e-5
    )
    if max_norm == 1e6:
        assert all(
            torch.equal(parameter.grad, gradient)
            for parameter, gradient in zip(parameters, gradients(dtype), strict=True)
        )


@pytest.mark.parametrize("norm", [1e-7, 1e-6, 1.0])
def test_small_gradients_are_clipped_as_torch_does(norm: float) -> None:
    ours, theirs = (torch.nn.Parameter(torch.zeros(9)) for _ in range(2))
    ours.grad, theirs.grad = (torch.full((9,), norm / 3) for _ in range(2))
    total = compute_grad_norm([ours.grad])
    clip_grads_with_norm_([ours], total_norm=total, max_norm=norm / 2)
    torch.nn.utils.clip_grad_norm_([theirs], norm / 2, foreach=True)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=0)


def draw_large_gradient() -> torch.Tensor:
    """As few elements as a gradient has that is gathered."""
    return torch.randn((512, 512), generator=torch.Generator().manual_seed(1))


def compute_of_large_gradient() -> float:
    """The norm on one of two ranks with half of it each."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    cpu = torch.device("cpu")
    # smaller ones are exact enough without the time that it takes to gather them
    assert not needs_full_gradient(distribute_tensor(torch.zeros(2**17), mesh, [Shard(0)]), cpu)
    part = distribute_tensor(draw_large_gradient(), mesh, [Shard(0)])
    return compute_grad_norm([part], device=cpu).item()


def test_large_gradients_have_the_norm_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    whole = draw_large_gradient()
    expected = torch.nn.utils.get_total_norm([whole]).item()
    halves = [torch.linalg.vector_norm(half) for half in whole.chunk(2)]
    assert torch.stack([half.square() for half in halves]).sum().sqrt().item() != expected
    assert call_on_ranks(2, compute_of_large_gradient, tmp_path) == [expected] * 2


def gradients_of_stages() -> list[dict[str, torch.Tensor]]:
    """By pipeline stage: gradients that are whole on each rank of it, or in parts."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "whole": torch.randn((5, scale), generator=generator) * scale,
            "by_row": torch.randn((8, 6), generator=generator) * scale,
            "by_both": torch.randn((8, 6), generator=generator) * scale,
        }
        for scale in (1, 4)
    ]


def compute_over_stages() -> dict[str, float]:
    """Norms on one of eight ranks: two pipeline stages of two by two ranks."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "fsdp", "tp"))
    given = gradients_of_stages()[mesh.get_local_rank("pp")]
    parts = [
        given["whole"],
        distribute_tensor(given["by_row"], mesh["fsdp"], [Shard(0)]),
        distribute_tensor(given["by_both"], mesh["fsdp", "tp"], [Shard(0), Shard(1)]),
    ]
    cpu = torch.device("cpu")
    return {
        "all": compute_grad_norm(parts, device=cpu, pp_group=mesh.get_group("pp")).item(),
        "of_stage": compute_grad_norm(parts, device=cpu).item(),
        # whole gradients on both stages, as without any sharding
        "whole": compute_grad_norm(parts[:1], device=cpu, pp_group=mesh.get_group("pp")).item(),
        # a stage all of whose layers are frozen
        "half": compute_grad_norm(
            parts if dist.get_rank() < 4 else [], device=cpu, pp_group=mesh.get_group("pp")
        ).item(),
    }


def test_the_norm_covers_all_shards_and_all_pipeline_stages(tmp_path: Path) -> None:
    stages = gradients_of_stages()

    def exact(*tensors: torch.Tensor) -> float:
        return torch.cat([tensor.double().flatten() for tensor in tensors]).norm().item()

    of_stage = [exact(*stage.values()) for stage in stages]
    expected = {
        "all": exact(*(tensor for stage in stages for tensor in stage.values())),
        "whole": exact(*(stage["whole"] for stage in stages)),
        "half": of_stage[0],
    }
    for rank, found in enumerate(call_on_ranks(8, compute_over_stages, tmp_path)):
        assert found == pytest.approx({**expected, "of_stage": of_stage[rank // 4]}, rel=1e-5)
