import pytest
import torch

from titanrun.distributed.grad_norm import clip_grads_with_norm_, compute_grad_norm


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
